"""In place of vLLM: answers on --port, with a stubborn child and a shared-memory segment.

`FLEET_TEST_FAIL` in the environment: a file; while it is there the engine fails as it starts.
"""

from __future__ import annotations

import os
import sys

from tests import demo_stub


def main() -> None:
    port = sys.argv[sys.argv.index("--port") + 1]
    fail = os.environ.get("FLEET_TEST_FAIL", "")
    sys.argv[1:] = [port, *(["--fail"] if fail and os.path.exists(fail) else [])]
    print("stub engine on", port, "preload", os.environ.get("LD_PRELOAD"), flush=True)
    demo_stub.main()


if __name__ == "__main__":
    main()
