"""Where a FileSet's files come from when they are not mounted: web servers and object stores.

All of it runs in a stage container, which holds the source's secrets and nothing else of value.
"""
