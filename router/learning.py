"""Learning: what prefill and loading cost on one replica, from what a proxy can see. Pure state.

Prefill: recursive least squares with forgetting on `t_first - max(t_dispatch + T_io, previous first
token there)`, divided by what the running decodes make of a second. The unknowns are c0, c1 and c2
as multiples of their starting values, so that they are of one size; errors are relative, so that a
few huge prompts do not decide; a surprise beyond some times the usual one counts as that;
nothing is ever learned to be below FLOOR of its start.

Loading: the same with two unknowns (latency, time per byte) and shorter memory, from loads on
replicas that had nothing else to do: a file system's bandwidth is what it gives now. It must not
know requests or replicas.
"""

from __future__ import annotations

from sharedfs_backend.economics import Loading, Prefill

PREFILL_MEMORY = 0.998
"""Forgetting for each sample: a memory of about 500 prefills."""
LOADING_MEMORY = 0.9
"""About 10 loads: contention comes and goes within minutes."""
UNCERTAIN = 25.0
"""Variance of a starting value, relative: it may well be five times off."""
PREFILL_CLIP = 4.0
LOADING_CLIP = 40.0
"""Contention is no outlier: a load may well take five times what it took."""
FLOOR = 1e-3
MARGIN_S = 2e-3
"""What a network adds and takes at random, beside a relative error."""
MARGIN = 0.05


class Filter:
    """Recursive least squares of three non-negative multiples, or two; they start at 1 each.

    Forgetting is directional (Cao and Schwartz, "A directional forgetting algorithm based on the
    decomposition of the information matrix", Automatica 2000): only what a sample speaks of is
    forgotten, so that a thousand equal requests do not unlearn what long prompts cost.

    Every answered request is a sample: the few sums are written out, loops take ten times as long.
    """

    __slots__ = (
        "_clip", "_forgetting", "_known", "_usual", "first", "samples", "second", "third",
    )  # fmt: skip

    def __init__(self, memory: float, clip: float) -> None:
        self.first = self.second = self.third = 1.0
        self.samples = 0
        self._forgetting = 1.0 - memory
        self._clip = clip
        self._usual = 10.0
        start = 1.0 / UNCERTAIN
        self._known = (start, 0.0, 0.0, 0.0, start, 0.0, 0.0, 0.0, start)
        """The information matrix, by rows: the inverse of the values' covariance."""

    def learn(self, one: float, two: float, three: float, seen: float) -> None:
        """The parts are what each value of 1 would contribute to `seen`; 0: not this one."""
        expected = self.first * one + self.second * two + self.third * three
        scale = MARGIN_S + MARGIN * expected
        error = (expected - seen) / scale
        usual = self._usual
        limit = self._clip * (usual if usual > 1.0 else 1.0)
        size = abs(error)
        self._usual = usual + 0.1 * ((size if size < 2 * limit else 2 * limit) - usual)
        if size > limit:
            error = limit if error > 0.0 else -limit

        a, b, c = one / scale, two / scale, three / scale
        aa, ab, ac, ba, bb, bc, ca, cb, cc = self._known
        p = aa * a + ab * b + ac * c
        q = ba * a + bb * b + bc * c
        r = ca * a + cb * b + cc * c
        power = a * p + b * q + c * r
        if power <= 0.0:  # nothing in the sample
            return
        forget = self._forgetting / power
        fp, fq, fr = forget * p, forget * q, forget * r
        aa += a * a - fp * p
        ab += a * b - fp * q
        ac += a * c - fp * r
        ba += b * a - fq * p
        bb += b * b - fq * q
        bc += b * c - fq * r
        ca += c * a - fr * p
        cb += c * b - fr * q
        cc += c * c - fr * r
        self._known = (aa, ab, ac, ba, bb, bc, ca, cb, cc)

        # The step: known * step = (a, b, c), by elimination.
        factor = ba / aa
        bb -= factor * ab
        bc -= factor * ac
        b -= factor * a
        factor = ca / aa
        cb -= factor * ab
        cc -= factor * ac
        c -= factor * a
        factor = cb / bb
        c = (c - factor * b) / (cc - factor * bc)
        b = (b - bc * c) / bb
        a = (a - (ab * b + ac * c)) / aa
        first, second, third = (
            self.first - a * error, self.second - b * error, self.third - c * error,
        )  # fmt: skip
        self.first = first if first > FLOOR else FLOOR
        self.second = second if second > FLOOR else FLOOR
        self.third = third if third > FLOOR else FLOOR
        self.samples += 1


class Usual:
    """A moving mean: of all samples at first, then of about the last hundred."""

    MEMORY = 0.99

    def __init__(self) -> None:
        self.value = 0.0
        self._weight = 0.0

    def saw(self, sample: float) -> None:
        self._weight = self.MEMORY * self._weight + 1.0
        self.value += (sample - self.value) / self._weight


class Speed:
    """One replica's costs: c0 to c2 and `loading` are current, and change with each sample."""

    def __init__(self, prefill: Prefill, loading: Loading) -> None:
        self.fixed_s = prefill.fixed_seconds
        self.token_s = prefill.token_seconds
        self.pair_s = prefill.pair_seconds
        self.loading = loading
        self._fixed_start, self._token_start = self.fixed_s, self.token_s
        self._pair_start = self.pair_s
        self._loading_start = loading
        self._prefill_filter = Filter(PREFILL_MEMORY, PREFILL_CLIP)
        self._loading_filter = Filter(LOADING_MEMORY, LOADING_CLIP)

    @property
    def prefill(self) -> Prefill:
        """c0 to c2 as one value."""
        return Prefill(self.fixed_s, self.token_s, self.pair_s)

    @property
    def prefills(self) -> int:
        """Prefills learned from."""
        return self._prefill_filter.samples

    @property
    def loads(self) -> int:
        """Loads learned from."""
        return self._loading_filter.samples

    def saw_prefill(self, computed: float, context: float, seconds: float) -> None:
        """Computing took `seconds` of undisturbed GPU time."""
        known = self._prefill_filter
        fixed, token, pair = self._fixed_start, self._token_start, self._pair_start
        pairs = computed * (context - computed / 2)
        known.learn(fixed, token * computed, pair * pairs, seconds if seconds > 0.0 else 0.0)
        self.fixed_s = fixed * known.first
        self.token_s = token * known.second
        self.pair_s = pair * known.third

    def saw_load(self, tokens: float, seconds: float) -> None:
        """Loading `tokens` from the shared tier took `seconds`."""
        start, known = self._loading_start, self._loading_filter
        transfer = tokens * start.bytes_per_token / start.bytes_per_second
        known.learn(start.latency_seconds, transfer, 0.0, max(0.0, seconds))
        self.loading = Loading(
            start.latency_seconds * known.first,
            start.bytes_per_second / known.second,
            start.bytes_per_token,
        )


class Trust:
    """How far predicted cached tokens can be believed: reported over predicted, lately."""

    MEMORY = 0.98
    GOODWILL_TOKENS = 50_000.0
    """What it starts with, so that one surprise does not end it."""
    ALARM_BELOW = 0.5
    CALM_ABOVE = 0.7
    ALARM_AFTER = 50
    """Answers in a row with trust below: some minutes even of light traffic."""

    def __init__(self) -> None:
        self.predicted = 0
        self.reported = 0
        self.has_alarm = False
        self.value = 1.0
        """1: reports are what was predicted, or more, or there is nothing to go by."""
        self._predicted_lately = self._reported_lately = self.GOODWILL_TOKENS
        self._below = 0

    def saw(self, predicted: float, reported: float) -> None:
        """One answer's figures. More than predicted is no reason for distrust, nor for trust."""
        self.predicted += int(predicted)
        self.reported += int(reported)
        if predicted <= 0:
            return
        self._predicted_lately = self.MEMORY * self._predicted_lately + predicted
        self._reported_lately = self.MEMORY * self._reported_lately + min(reported, predicted)
        self.value = min(1.0, self._reported_lately / self._predicted_lately)
        self._below = self._below + 1 if self.value < self.ALARM_BELOW else 0
        if self._below >= self.ALARM_AFTER:
            self.has_alarm = True
        elif self.value > self.CALM_ABOVE:
            self.has_alarm = False
