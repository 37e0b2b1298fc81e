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
    """Recursive least squares of a few non-negative multiples; starts at 1 each.

    Forgetting is directional (Cao and Schwartz, "A directional forgetting algorithm based on the
    decomposition of the information matrix", Automatica 2000): only what a sample speaks of is
    forgotten, so that a thousand equal requests do not unlearn what long prompts cost.
    """

    def __init__(self, size: int, memory: float, clip: float) -> None:
        self.values = [1.0] * size
        self.samples = 0
        self._memory = memory
        self._clip = clip
        self._usual = 10.0
        self._known = [[(i == j) / UNCERTAIN for j in range(size)] for i in range(size)]
        """The information matrix: the inverse of the values' covariance."""

    def learn(self, parts: list[float], seen: float) -> None:
        """`parts` are what each value of 1 would contribute to `seen`."""
        expected = sum(v * part for v, part in zip(self.values, parts, strict=True))
        scale = MARGIN_S + MARGIN * expected
        shape = [part / scale for part in parts]
        error = (expected - seen) / scale
        limit = self._clip * max(1.0, self._usual)
        self._usual += 0.1 * (min(abs(error), 2 * limit) - self._usual)
        error = max(-limit, min(limit, error))

        known = self._known
        image = [sum(a * b for a, b in zip(row, shape, strict=True)) for row in known]
        power = sum(a * b for a, b in zip(shape, image, strict=True))
        if power <= 0.0:  # nothing in the sample
            return
        forget = (1.0 - self._memory) / power
        for row, a, b in zip(known, shape, image, strict=True):
            for j, (c, d) in enumerate(zip(shape, image, strict=True)):
                row[j] += a * c - forget * b * d
        for i, step in enumerate(solved(known, shape)):
            self.values[i] = max(FLOOR, self.values[i] - step * error)
        self.samples += 1


def solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """x of `matrix` x = `right`, for a small symmetric positive matrix, by elimination."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for i in range(size):
        pivot = rows[i]
        for below in rows[i + 1 :]:
            factor = below[i] / pivot[i]
            for j in range(i, size + 1):
                below[j] -= factor * pivot[j]
    for i in reversed(range(size)):
        row = rows[i]
        row[size] = (row[size] - sum(row[j] * rows[j][size] for j in range(i + 1, size))) / row[i]
    return [row[size] for row in rows]


class Speed:
    """One replica's costs: `prefill` and `loading` are current, and change with each sample."""

    def __init__(self, prefill: Prefill, loading: Loading) -> None:
        self.prefill = prefill
        self.loading = loading
        self._prefill_start = prefill
        self._loading_start = loading
        self._prefill_filter = Filter(3, PREFILL_MEMORY, PREFILL_CLIP)
        self._loading_filter = Filter(2, LOADING_MEMORY, LOADING_CLIP)

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
        start = self._prefill_start
        pairs = computed * (context - computed / 2)
        parts = [start.fixed_seconds, start.token_seconds * computed, start.pair_seconds * pairs]
        self._prefill_filter.learn(parts, max(0.0, seconds))
        fixed, token, pair = self._prefill_filter.values
        self.prefill = Prefill(
            start.fixed_seconds * fixed, start.token_seconds * token, start.pair_seconds * pair
        )

    def saw_load(self, tokens: float, seconds: float) -> None:
        """Loading `tokens` from the shared tier took `seconds`."""
        start = self._loading_start
        transfer = tokens * start.bytes_per_token / start.bytes_per_second
        self._loading_filter.learn([start.latency_seconds, transfer], max(0.0, seconds))
        latency, per_byte = self._loading_filter.values
        self.loading = Loading(
            start.latency_seconds * latency,
            start.bytes_per_second / per_byte,
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
