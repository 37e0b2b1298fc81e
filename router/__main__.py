"""`python -m router`: the command `sharedfs-router`.

What it does stands in `cli`. Nothing here knows anything.
The file exists so that a checkout runs without being installed.
"""

from router.cli import main

main()
