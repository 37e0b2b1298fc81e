"""A synthetic engine: everything of an LMCache server but the GPU, with real bytes.

It calls an L2 adapter exactly as LMCache's controllers do (batches, order, buffer ownership), with
the KV shapes of real models from one table, and adds computing time from a stated cost model: so
that questions about 70B-class models can be asked on a machine without a GPU.
"""
