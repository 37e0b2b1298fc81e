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
UNCERTAIN_MOST = 100.0
"""What directions never seen may grow to under forgetting."""
PREFILL_CLIP = 4.0
LOADING_CLIP = 40.0
"""Contention is no outlier: a load may well take five times what it took."""
FLOOR = 1e-3
MARGIN_S = 2e-3
"""What a network adds and takes at random, beside a relative error."""
MARGIN = 0.05


class Filter:
    """Recursive least squares of a few non-negative multiples; starts at 1 each."""

    def __init__(self, size: int, memory: float, clip: float) -> None:
        self.values = [1.0] * size
        self.samples = 0
        self._memory = memory
        self._clip = clip
        self._usual = 10.0
        self._spread = [[UNCERTAIN * (i == j) for j in range(size)] for i in range(size)]

    def learn(self, parts: list[float], seen: float) -> None:
        """`parts` are what each value of 1 would contribute to `seen`."""
        expected = sum(v * part for v, part in zip(self.values, parts, strict=True))
        scale = MARGIN_S + MARGIN * expected
        shape = [part / scale for part in parts]
        error = (expected - seen) / scale
        limit = self._clip * max(1.0, self._usual)
        self._usual += 0.1 * (min(abs(error), 2 * limit) - self._usual)
        error = max(-limit, min(limit, error))

        spread, memory = self._spread, self._memory
        image = [sum(a * b for a, b in zip(row, shape, strict=True)) for row in spread]
        power = memory + sum(a * b for a, b in zip(shape, image, strict=True))
        for i, row in enumerate(spread):
            gain = image[i] / power
            self.values[i] = max(FLOOR, self.values[i] - gain * error)
            for j in range(len(row)):
                row[j] = (row[j] - gain * image[j]) / memory
        self._bound()
        self.samples += 1

    def _bound(self) -> None:
        """Forgetting inflates what is never observed; scale such rows back (keeps it definite)."""
        for i, row in enumerate(self._spread):
            if row[i] > UNCERTAIN_MOST:
                shrink = (UNCERTAIN_MOST / row[i]) ** 0.5
                for j in range(len(row)):
                    row[j] *= shrink
                    self._spread[j][i] *= shrink


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
        self._predicted_lately = 0.0
        self._reported_lately = 0.0
        self._below = 0

    def saw(self, predicted: float, reported: float) -> None:
        """One answer's figures. More than predicted is no reason for distrust, nor for trust."""
        self.predicted += int(predicted)
        self.reported += int(reported)
        if predicted <= 0:
            return
        self._predicted_lately = self.MEMORY * self._predicted_lately + predicted
        self._reported_lately = self.MEMORY * self._reported_lately + min(reported, predicted)
        if self._predicted_lately >= 1.0:
            self.value = min(1.0, self._reported_lately / self._predicted_lately)
        self._below = self._below + 1 if self.value < self.ALARM_BELOW else 0
        if self._below >= self.ALARM_AFTER:
            self.has_alarm = True
        elif self.value > self.CALM_ABOVE:
            self.has_alarm = False
