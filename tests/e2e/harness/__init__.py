"""What the end-to-end tests stand on: namespaces, servers, waiting, raw requests.

Nothing here knows what a single test is about.
"""
