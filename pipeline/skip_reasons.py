"""Why pages and documents are left out, by the names under which reports and manifests count them."""

# Before cleaning, by what the source says of a page or row.
MALFORMED = "malformed"
NAMESPACE = "namespace"
REDIRECT = "redirect"
CONTENT_MODEL = "content-model"
DELETED = "deleted"
EMPTY = "empty"
TOO_LARGE = "too-large"

# While or after cleaning, by its text.
DISAMBIGUATION = "disambiguation"
LIST_LIKE = "list-like"
TOO_SHORT = "too-short"
TIMEOUT = "timeout"

# By dedup, when all documents are known.
DUPLICATE = "duplicate"
"""The same page read twice."""
CONTAMINATED = "contaminated"
DUPLICATE_TEXT = "duplicate-text"
BOT_STUB = "bot-stub"
NEAR_DUPLICATE = "near-duplicate"
BOILERPLATE = "boilerplate"
