"""Normalizes Unicode text: NFC, single spaces, no invisible characters.

It keeps what belongs to the spelling: joiners next to letters of a joining script, variation selectors,
vowel signs, emoji sequences. Sources of the rules: UAX #15 (NFC), UAX #9 (direction marks), UAX #31
section 2.3 (where joiners matter), UAX #14 (U+200B as a word space).
"""

import re
import unicodedata
from collections.abc import Sequence

from pipeline.text.languages import ZERO_WIDTH_SPACED_LANGUAGES

# The last two code points of every plane except the first are not characters.
_NONCHARACTERS = "".join(
    f"{chr(plane + 0xFFFE)}-{chr(plane + 0xFFFF)}" for plane in range(1 << 16, 17 << 16, 1 << 16)
)
# One class of all characters that may need a change, so that clean text needs one scan. str.split handles all
# kinds of white space.
_SUSPECT = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\ufdd0-\ufdef\ufeff\ufff0-\uffff\ud800-\udfff\U000e0000-\U000e007f\u115f\u1160\u3164\uffa0"
    f"{_NONCHARACTERS}]"
)
_PRINTABLE_UNSEEN = "\ufffc\ufffd\u115f\u1160\u3164\uffa0"
_CONJOINING = "\u1100-\u115e\u1161-\u11ff\ua960-\ua97f\ud7b0-\ud7ff"
_INVISIBLE = re.compile(
    "(\U0001f3f4[\U000e0020-\U000e007e]+\U000e007f)"  # a flag of a region: kept
    "|\x1b\\[[0-9;]*[A-Za-z]"  # a terminal color code from pasted output
    "|(?<![\u1800-\u18af])\u180e"  # Mongolian separates a final vowel with it
    "|[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    f"\ufdd0-\ufdef\ufeff\ufff0-\uffff\ud800-\udfff\U000e0000-\U000e007f{_NONCHARACTERS}\uffa0]+"
    # Hangul fillers, except those that replace a missing letter next to conjoining ones.
    f"|(?<![{_CONJOINING}])[\u115f\u1160]+(?![{_CONJOINING}])"
)
# Scripts that write words without spaces: Thai, Lao, Tibetan, Myanmar, Khmer, Tai Le, New Tai Lue, Tai Tham.
_UNSPACED = "\u0e00-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\uaa60-\uaadf"
_WORD_SPACE = re.compile(f"(?<=[{_UNSPACED}])\u200b+(?=[{_UNSPACED}])")
# Scripts in which a joiner changes the shape of letters: Arabic, Syriac, N'Ko, Mandaic, the Indic
# scripts, Tibetan, Myanmar, Khmer, Mongolian, Balinese and their neighbors.
_ARABIC = "\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdcf\ufdf0-\ufdff\ufe70-\ufefc"
_JOINING = (
    f"{_ARABIC}\u0700-\u074f\u0780-\u089f\u0900-\u0dff\u0f00-\u109f\u1780-\u180d\u180f-\u18af\u1a20-\u1aaf"
    "\u1b00-\u1c4f\ua800-\ua82f\ua840-\uaadf\uabc0-\uabff\U00010a00-\U00011fff"
)
_PICTURE = "\ufe0f\u2190-\u2bff\U0001f000-\U0001faff"
_JOINERS = re.compile(
    f"(?<=[{_PICTURE}])(\u200d)(?=[{_PICTURE}])"  # an emoji sequence
    f"|(?<=[{_JOINING}])(\u200c)\u200c*(?=[{_JOINING}])"  # within a word: one is enough
    "|(?<=\u0647)(\u200c)\u200c*"  # Kurdish writes a vowel as heh and a non-joiner
    f"|(?<=[{_ARABIC}])\u200c+"  # at the end of another Arabic word: no effect
    f"|(?<=[{_JOINING}])([\u200c\u200d]+)"
    f"|([\u200d]+)(?=[{_ARABIC}])"  # shows the final form of a letter
    "|[\u200c\u200d]+"
)
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


_LONE_SURROGATE = re.compile("[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]")


def count_lone_surrogates(text: str) -> int:
    """Counts the unpaired surrogates in ``text``, which cleaning removes."""
    return len(_LONE_SURROGATE.findall(text))


def normalize_paragraphs(paragraphs: Sequence[str], lang: str) -> list[str]:
    """Applies `normalize_text` to each text and drops those that become empty."""
    normal = (normalize_text(paragraph, lang) for paragraph in paragraphs)
    return [paragraph for paragraph in normal if paragraph]


def normalize_text(text: str, lang: str) -> str:
    """Converts ``text`` to NFC, collapses white space to single spaces and removes invisible characters.

    ``lang`` is the language's code. If the language separates words by U+200B, each becomes a space.
    Letters, marks and digits stay as they are (in NFC). The function is idempotent.
    """
    if _SUSPECT.search(text):
        text = _without_invisible(text, lang)
    return " ".join(to_nfc(text).split())


def is_visible(text: str) -> bool:
    """Whether ``text`` has no white space other than spaces and no invisible characters.

    If its spaces are also single, `normalize_text` only applies NFC. This check is much faster than a search
    for characters to change.
    """
    # Other white space, control and format characters are not printable. U+FFFC and U+FFFD count as such.
    return text.isprintable() and (text.isascii() or not any(sign in text for sign in _PRINTABLE_UNSEEN))


def to_nfc(text: str) -> str:
    """``text`` in NFC."""
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def _without_invisible(text: str, lang: str) -> str:
    text = _SURROGATE_PAIR.sub(_join_pair, text)
    text = text.replace("\u3164", " ")  # a filler as wide as a syllable
    if "\u200b" in text:
        if lang in ZERO_WIDTH_SPACED_LANGUAGES:
            text = text.replace("\u200b", " ")
        else:
            text = _WORD_SPACE.sub(" ", text)
    text = _INVISIBLE.sub(r"\1", text)
    if "\u200c" in text or "\u200d" in text:
        text = _JOINERS.sub(r"\1\2\3\4\5", text)
    return text


def _join_pair(match: re.Match[str]) -> str:
    pair = match.group()
    return chr(0x10000 + ((ord(pair[0]) - 0xD800) << 10) + ord(pair[1]) - 0xDC00)
