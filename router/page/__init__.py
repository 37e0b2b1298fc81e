"""The page at `/`: plain HTML, CSS and JavaScript, served as they stand, without anything from
elsewhere. It reads `/router/history` every two seconds and draws SVG.

Not one byte of it is made from a request: names of replicas and models reach the document as text.
"""
