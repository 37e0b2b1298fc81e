"""In place of LMCache's server: answers on --http-port, as the stub engine does."""

from __future__ import annotations

import os
import sys

from tests import demo_stub


def main() -> None:
    sys.argv[1:] = [sys.argv[sys.argv.index("--http-port") + 1]]
    print("stub server, preload", os.environ.get("LD_PRELOAD"), flush=True)
    demo_stub.main()


if __name__ == "__main__":
    main()
