"""The reasons for skipping pages and documents, as reports and manifests name them."""

# Before cleaning, from the source's facts about a page or row.
MALFORMED = "malformed"
NAMESPACE = "namespace"
REDIRECT = "redirect"
CONTENT_MODEL = "content-model"
DELETED = "deleted"
EMPTY = "empty"
TOO_LARGE = "too-large"

# During or after cleaning, from the text.
DISAMBIGUATION = "disambiguation"
LIST_LIKE = "list-like"
TOO_SHORT = "too-short"
FORMULAS = "formulas"
"""Too short without its paragraphs of nothing but formulas."""
TIMEOUT = "timeout"

# By dedup, over all documents.
DUPLICATE = "duplicate"
"""The same page read twice."""
CONTAMINATED = "contaminated"
DUPLICATE_TEXT = "duplicate-text"
BOT_STUB = "bot-stub"
NEAR_DUPLICATE = "near-duplicate"
BOILERPLATE = "boilerplate"
