"""Exact mode: asks in the engine's own tokens, with what the shared tier holds of them.

For a request: the model's tokenizer and template give its token ids, on a thread; a chain over them
the blocks; LMCache's chunk hashes and the catalog the shared prefix. Where any of it cannot be had
or is not trusted (`Parity`), the ask is the one made from characters, or lacks the shared prefix:
nothing fails, and `status` says what is not exact and why.

Parity is checked by `check` (the engine's /tokenize against our own ids) when an engine appears and
now and then after, and watched by `answered`. It must not know replicas' load or sockets: whoever
calls `check` brings the means to ask an engine. Event loop's thread only.
"""

from __future__ import annotations

import asyncio
import json
import logging
from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from router.asks import Ask, Usage
from router.canonical import TOKEN_BYTES
from router.chunkhash import ALGORITHM, chunk_hashes
from router.parity import Parity
from router.prefix import BLOCK_BYTES, BLOCKS_MAX, Parsed, ask_of, chain, token_seed
from router.registry import AnnouncedReplica
from router.tier import Keyspace, Tier, kv_ranks
from router.tokens import Kind, Tokenizer, ids_of, kind_of

log = logging.getLogger(__name__)

EXACT_BYTES_MAX = 4 << 20
"""Longer prompts are weighed by their characters: tokenizing them takes a second."""
WAITING_MAX = 64
"""Requests whose tokens are being found, those nobody waits for any more included; more are weighed
by their characters (I9)."""
EXACT_SECONDS_MAX = 2.0
"""A request waits no longer for its tokens, others' before it included: then its characters do."""
THREADS = 2
"""Tokenizers release the interpreter lock; the relay needs a core too."""

Post = Callable[[str, bytes], Awaitable[bytes | None]]
"""Ask one engine: path and JSON body -> the body of a 200, or None."""

_TEXT = "The tide came in: 1,024 boats — naïve, grün, 日本語 — rose.\n\tdef f(x):  return x**2\n"
_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"where": {"type": "string"}}},
    },
}
_CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": _TEXT},
    {"role": "assistant", "content": "Indeed."},
    {"role": "user", "content": "And then?"},
]
SAMPLES: tuple[tuple[Kind, Mapping[str, Any]], ...] = (
    (Kind.COMPLETION, {"prompt": _TEXT}),
    (Kind.CHAT, {"messages": _CHAT}),
    (Kind.CHAT, {"messages": _CHAT[1:2]}),
    (Kind.TOOLS, {"messages": _CHAT, "tools": [_TOOL]}),
    (Kind.TOOLS, {"messages": _CHAT, "tools": [{"function": {"name": "f"}, "type": "function"}]}),
)


@dataclass(frozen=True, slots=True)
class ExactAsk:
    """An ask, and what parity wants to know of it when it is answered."""

    ask: Ask
    kind: Kind | None = None
    """None: from characters."""


@dataclass(slots=True)
class _Wanted:
    """A request whose tokens are to be found."""

    kind: Kind
    parsed: Parsed
    adapter: str
    is_over: bool = False
    """Nobody waits any more."""


def keyspace_of(replicas: Iterable[AnnouncedReplica]) -> Keyspace | str:
    """What turns chunk hashes into keys for all of these replicas, or why nothing does."""
    spaces = set()
    for replica in replicas:
        if not replica.realm or not replica.chunk_tokens:
            return f"{replica.url} announces no realm or no chunk size"
        if replica.hash_algorithm != ALGORITHM:
            return (
                f"{replica.url} hashes with {replica.hash_algorithm or 'it does not say what'}; "
                f"start LMCache with --hash-algorithm {ALGORITHM}"
            )
        ranks = kv_ranks(replica.kv_world_size)
        spaces.add(
            Keyspace(
                bytes.fromhex(replica.realm), replica.chunk_tokens, ranks, replica.object_groups
            )
        )
    if len(spaces) > 1:
        return "replicas differ in realm, chunk size or ranks: their tiers are not one"
    return spaces.pop() if spaces else "no replica has announced itself"


class Exact:
    """See the module. Without a tier the shared prefix is not known."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        tier: Tier | None = None,
        executor: Executor | None = None,
    ) -> None:
        self._tokenizer, self._tier = tokenizer, tier
        self._own = ThreadPoolExecutor(THREADS, "router-tokens") if executor is None else None
        self._executor = executor or self._own
        self._space: Keyspace | str = "no replica has announced itself"
        self._waiting = 0
        self._models = {"": ""}
        self.parity = Parity()
        self.exact_asks = self.character_asks = 0

    def close(self) -> None:
        if self._own is not None:
            self._own.shutdown(wait=False, cancel_futures=True)

    # -- what is known of the fleet ------------------------------------------------------------

    def serves(self, base_models: Iterable[str], adapters: Iterable[str] = ()) -> None:
        """Names of the model itself, and of LoRA adapters to it. Others are not exact."""
        self._models = {name: name for name in adapters} | {name: "" for name in base_models}
        self._models[""] = ""  # a request without a name is for the model itself

    def announced(self, replicas: Iterable[AnnouncedReplica]) -> None:
        """The replicas there are. What they share in decides the keys that are looked up."""
        space = keyspace_of(replicas)
        if space != self._space:
            self._space = space
            self.parity.restore_tier()
            if isinstance(space, str):
                log.warning("the shared tier is not looked into: %s", space)

    @property
    def status(self) -> dict[str, str]:
        """What is not exact -> why. Empty: everything is."""
        reasons = self.parity.reasons
        if self._tier is None:
            reasons["tier"] = "no namespace is given"
        elif isinstance(self._space, str):
            reasons["tier"] = self._space
        elif not self._tier.is_current:
            reasons.setdefault("tier", "the namespace does not answer")
        return reasons

    # -- asks ----------------------------------------------------------------------------------

    async def ask(self, path: bytes, parsed: Parsed, tokens_per_byte: float) -> ExactAsk:
        """The request in exact tokens, or as its characters tell."""
        kind = kind_of(path, parsed.fields)
        adapter = self._models.get(parsed.model)
        usable = (
            kind is not None
            and adapter is not None
            and self.parity.trusts(kind)
            and parsed.canonical_bytes <= EXACT_BYTES_MAX
            and self._waiting < WAITING_MAX
        )
        if usable and kind is not None and adapter is not None:
            made = await self._in_time(_Wanted(kind, parsed, adapter))
            if made is not None:
                self.exact_asks += 1
                return ExactAsk(made, kind)
        self.character_asks += 1
        return ExactAsk(ask_of(parsed, tokens_per_byte))

    async def _in_time(self, wanted: _Wanted) -> Ask | None:
        """Found by a worker; None where that takes too long. Its place is taken until a worker has
        had it: the executor's queue keeps what is cancelled, bodies included, and has no end."""
        loop = asyncio.get_running_loop()
        self._waiting += 1
        try:
            work = loop.run_in_executor(self._executor, self._exact, wanted)
        except BaseException:
            self._waiting -= 1
            raise
        work.add_done_callback(self._had)
        try:
            return await asyncio.wait_for(asyncio.shield(work), EXACT_SECONDS_MAX)
        except TimeoutError:
            return None
        finally:
            wanted.is_over = True

    def _had(self, work: asyncio.Future[Ask | None]) -> None:
        self._waiting -= 1

    def _exact(self, wanted: _Wanted) -> Ask | None:
        """On a worker's thread. A tokenizer may raise anything for what a client can send; the
        engine will say so to it."""
        if wanted.is_over:
            return None
        kind, parsed, adapter = wanted.kind, wanted.parsed, wanted.adapter
        try:
            return self._in_tokens(kind, parsed, adapter)
        except Exception:
            log.debug("a prompt is weighed by its characters", exc_info=True)
            return None

    def _in_tokens(self, kind: Kind, parsed: Parsed, adapter: str) -> Ask | None:
        ids = ids_of(self._tokenizer, kind, parsed.fields)
        if not ids:
            return None
        data = array("I", ids).tobytes()
        salt = parsed.fields.get("cache_salt") or ""
        seed = token_seed(adapter, str(salt))
        ask = Ask(
            blocks=chain(data, seed, BLOCK_BYTES, BLOCKS_MAX),
            block_tokens=BLOCK_BYTES / TOKEN_BYTES,
            prompt_tokens=len(ids),
            output_tokens=parsed.output_tokens,
            model=parsed.model,
            affinity=parsed.affinity,
            is_streamed=parsed.stream,
        )
        return replace(ask, shared_tokens=self._shared(ids, str(salt), adapter))

    def _shared(self, ids: list[int], salt: str, adapter: str) -> int | None:
        space = self._space
        if self._tier is None or isinstance(space, str) or not self.parity.trusts_tier:
            return None
        if adapter and not salt:
            return None  # LMCache's keys know no adapters: only a salt keeps them apart
        return self._tier.held_tokens(chunk_hashes(ids, space.chunk_tokens), space, salt)

    # -- parity --------------------------------------------------------------------------------

    async def check(self, post: Post, where: str, model: str) -> None:
        """Compare our ids with those of the engine at `where`. An engine that does not answer, or
        has no chat template, proves nothing."""
        loop = asyncio.get_running_loop()
        found: dict[Kind, tuple[list[int], list[int]]] = {}
        for kind, fields in SAMPLES:
            answer = await post("/tokenize", json.dumps({"model": model, **fields}).encode())
            theirs = _tokens(answer)
            if theirs is None:
                continue
            ours = await loop.run_in_executor(self._executor, ids_of, self._tokenizer, kind, fields)
            both = found.setdefault(kind, ([], []))
            both[0].extend(ours or ())
            both[1].extend(theirs)
        for kind, (ours_all, theirs_all) in found.items():
            self.parity.compared(kind, ours_all, theirs_all, where)
        for what, why in self.parity.reasons.items():
            log.warning("exact mode does without %s: %s", what, why)

    def answered(self, asked: ExactAsk, usage: Usage, *, loads: bool = True) -> None:
        """What the engine reported about a request. `loads` False: it was asked not to load."""
        if asked.kind is None or usage.prompt_tokens is None:
            return
        ask = asked.ask
        self.parity.reported_length(asked.kind, ask.prompt_tokens, usage.prompt_tokens)
        if ask.shared_tokens is None or usage.cached_tokens is None or not loads:
            return
        if isinstance(self._space, Keyspace):
            self.parity.reported_cached(
                ask.shared_tokens, self._space.chunk_tokens, ask.prompt_tokens, usage.cached_tokens
            )


def _tokens(answer: bytes | None) -> list[int] | None:
    try:
        value = json.loads(answer or b"null")
    except (ValueError, RecursionError):
        return None
    ids = value.get("tokens") if isinstance(value, dict) else None
    return ids if isinstance(ids, list) else None
