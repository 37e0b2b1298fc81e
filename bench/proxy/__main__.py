"""`python -m bench.proxy serve PORT`: forwards a free loopback port to PORT, later than it came.

Prints the port it listens on. A line on standard input is a new delay in milliseconds for each
direction, answered by that number; the end of standard input is the end. The comparison with the
throttled mount is a case of the benchmark: `python -m bench run crosscheck`.
"""

from __future__ import annotations

import sys

from bench.proxy.delay import DelayProxy


def main(words: list[str]) -> int:
    if len(words) not in (2, 3) or words[0] != "serve":
        print("usage: python -m bench.proxy serve PORT [LISTEN_PORT]", file=sys.stderr)
        return 2
    listen = int(words[2]) if len(words) == 3 else 0
    with DelayProxy(int(words[1]), port=listen) as proxy:
        print(proxy.port, flush=True)
        for line in sys.stdin:
            proxy.delay_ms = max(0.0, float(line))
            print(proxy.delay_ms, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
