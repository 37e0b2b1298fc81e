"""In place of LMCache's server: answers on --http-port, as the stub engine does."""

from __future__ import annotations

import sys

from tests import demo_stub


def main() -> None:
    sys.argv[1:] = [sys.argv[sys.argv.index("--http-port") + 1]]
    demo_stub.main()


if __name__ == "__main__":
    main()
