"""The router: an OpenAI-compatible load balancer that estimates each replica's time to first token.

Every replica can reload every prefix from the shared tier, so the router does not chase the longest
match: it estimates, in seconds, when each replica would send its first token, and takes the least.

`relay` moves bytes and knows no decisions; `fleet` and what it is built on decide and touch no
socket; `service` joins the two. Of the store it uses the layout's hashing, `economics` and the
catalog, read only.
"""
