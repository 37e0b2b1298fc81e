"""What relaying costs: this router beside vllm-router and sglang-router, in front of mock replicas.

`python -m bench.relay --venv DIR` runs it; the pages of numbers it makes are in docs/.
"""
