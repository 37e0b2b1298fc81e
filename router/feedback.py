"""Feedback: what an answered request tells about its replica and about the choice. Decisions only.

A proxy sees when it dispatched, when the first byte and the end came (of an answer that is not
streamed, only the end), and the usage the replica reports. From these: samples of prefill and of
loading, how far the prefix prediction held, and regret. It must not know how estimates are made
from what is learned.
"""

from __future__ import annotations

from router.asks import Usage
from router.replica import Replica
from router.tickets import Ticket


def learn(known: Replica, ticket: Ticket, usage: Usage | None, decode_slowdown: float) -> None:
    """Takes what an answered request says of its replica's speed and prefixes.

    A prefill began when the one before it was done or when its loads were there; where the latter
    came last, the sample is one of loading, and good only if nothing else was going on.
    """
    prompt, scale = float(ticket.prompt_tokens), 1.0
    if usage is not None and usage.prompt_tokens:
        prompt = float(usage.prompt_tokens)
        scale = prompt / max(1, ticket.prompt_tokens)
    cached = ticket.cached_tokens * scale
    if usage is not None and usage.cached_tokens is not None:
        remembered = ticket.remembered_tokens * scale
        known.reported(remembered, usage.cached_tokens, ticket.block_tokens)
        if ticket.shared_tokens and usage.cached_tokens < cached - ticket.block_tokens:
            return  # what it loaded is not known
        cached = min(float(usage.cached_tokens), prompt - 1)
    if ticket.first_at is None or ticket.began_at is None or not ticket.is_streamed:
        return  # when its prefill began or was done is not known
    computed = max(1.0, prompt - cached)
    slow = 1.0 + decode_slowdown * ticket.decodes
    dispatched = ticket.chosen_at if ticket.sent_at is None else ticket.sent_at
    if not ticket.shared_tokens or ticket.began_at - dispatched > ticket.io_s:
        known.speed.saw_prefill(computed, prompt, (ticket.first_at - ticket.began_at) / slow)
    elif ticket.was_idle and not ticket.io_waited_s:
        computing_s = slow * known.speed.prefill.seconds(computed, prompt)
        loading_s = ticket.first_at - dispatched - computing_s - ticket.local_s
        known.speed.saw_load(ticket.shared_tokens, loading_s)


def regret(ticket: Ticket, now: float) -> float | None:
    """Seconds by which the runner-up would have been sooner, at the first byte; None: nobody was.

    The runner-up's queue is no estimate any more: the request that was last in it then has had its
    first token, or has not. Loading and computing there are as they were predicted.
    """
    rival, ticket.rival = ticket.rival, None
    if rival is None or not ticket.is_streamed:
        return None
    waited = 0.0
    if rival.last is not None:
        free_at = rival.last.first_at
        if free_at is None and rival.last.is_open:
            free_at = now  # still not free: there it would not even have begun
        if free_at is not None:  # else that request failed, and nobody waited for it
            waited = max(0.0, free_at - ticket.chosen_at)
    theirs = max(waited, rival.io_s) + rival.compute_s
    return max(0.0, now - ticket.chosen_at - theirs)
