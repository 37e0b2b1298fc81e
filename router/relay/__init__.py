"""The data path: HTTP/1.1 in, HTTP/1.1 out, byte for byte. It knows nothing of decisions.

`exchange` is its contract with whoever decides; everything else here is effects and parsing.
"""
