"""The sections of the report about sequences: tokens, lengths, pairs and masks."""

from collections import Counter
from collections.abc import Mapping
from html import escape

from pipeline.instances.counts import add_counts
from pipeline.instances.sets import totals
from pipeline.report.charts import Bar, bars, histogram
from schemas.instance_counts import LENGTH_BINS, InstanceCounts
from schemas.manifest import Manifest

Counts = Mapping[str, Mapping[str, InstanceCounts]]
"""Set label (name/split/pass, such as ``len128/train/0``) -> language -> counts."""
Section = tuple[str, str]


def instance_sections(manifest: Manifest, counts: Counts) -> list[Section]:
    """Headings and bodies."""
    lengths = {entry.name: entry.max_seq_length for entry in manifest.sets}
    by_length: dict[str, dict[str, InstanceCounts]] = {}
    for name, by_language in counts.items():
        add_counts(by_length.setdefault(name.partition("/")[0], {}), by_language)
    return [
        ("Tokens used, cut and left over", _tokens(by_length)),
        ("Lengths", _lengths(by_length, lengths)),
        ("Padding saved by packing", _padding(by_length, lengths)),
        ("Sentence pairs", _pairs(manifest, by_length)),
        ("Masks", _masks(by_length)),
    ]


def _ordered(by_language: Mapping[str, InstanceCounts]) -> list[tuple[str, InstanceCounts]]:
    return sorted(by_language.items(), key=lambda item: (-item[1].tokens_in, item[0]))


def _tokens(by_length: Mapping[str, dict[str, InstanceCounts]]) -> str:
    """Tokens in = used + cut + left over, by length and by language."""
    series = ("used", "cut to fit the length", "left over")
    text = "<p>Copies of documents and all passes included. Special tokens are not counted.</p>"
    by_set, reasons = [], Counter[str]()
    for name, by_language in by_length.items():
        account = totals(by_language)
        by_set.append(_account(name, account))
        reasons.update({f"{name}: {reason}".replace("_", " "): n for reason, n in account.left_over.items()})
    text += bars(by_set, "tokens", series)
    left = sorted(((name, count) for name, count in reasons.items() if count), key=lambda item: -item[1])
    if left:
        text += "<h3>Left over, by reason</h3>" + bars([Bar(name, (n,)) for name, n in left], "tokens")
    for name, by_language in by_length.items():
        rows = [_account(lang, account) for lang, account in _ordered(by_language)]
        text += f"<h3>{escape(name)} by language</h3>" + bars(rows, "tokens", series)
    return text


def _account(name: str, account: InstanceCounts) -> Bar:
    return Bar(name, (account.tokens_used, account.tokens_cut, account.tokens_left_over))


def _lengths(by_length: Mapping[str, dict[str, InstanceCounts]], lengths: Mapping[str, int]) -> str:
    charts = []
    documents = InstanceCounts()
    for name, by_language in by_length.items():
        account = totals(by_language)
        documents = documents if sum(documents.document_sentences) else account
        most = lengths[name]
        edges = [f"{(number + 1) * most // LENGTH_BINS}" for number in range(LENGTH_BINS)]
        charts.append(histogram(account.lengths, edges, f"{name}: tokens of a sequence, up to", "sequences"))
    powers = documents.document_sentences
    used = max((number for number, count in enumerate(powers) if count), default=0) + 1
    names = [str(1 << number) for number in range(used)]
    charts.append(histogram(powers[:used], names, "sentences of a document, at least", "documents"))
    return f"<div class=pair>{''.join(charts)}</div>"


def _padding(by_length: Mapping[str, dict[str, InstanceCounts]], lengths: Mapping[str, int]) -> str:
    """Shares of tokens and of padding if sequences were padded to the maximum length."""
    text = (
        "<p>Shards have no padding, and the trainer packs sequences of any length together. Padded to their "
        "maximum length, the sequences would consist of these shares.</p>"
    )
    rows = []
    for name, by_language in by_length.items():
        account = totals(by_language)
        if account.sequences:
            real = account.sequence_tokens / (account.sequences * lengths[name])
            rows.append(Bar(name, (real, 1.0 - real)))
            text += (
                f"<p class=note>{escape(name)}: a mean of {account.sequence_tokens / account.sequences:.1f} "
                f"of {lengths[name]} tokens; {1 - real:.1%} of the computation saved.</p>"
            )
    return text + bars(
        rows, "share of the positions", ("tokens", "padding saved"), shares=True, stacked=False
    )


def random_pairs(counts: Counts) -> dict[str, float]:
    """Language -> share of its pairs with label 1 (random next, or swapped)."""
    everything: dict[str, InstanceCounts] = {}
    for by_language in counts.values():
        add_counts(everything, by_language)
    shares = {}
    for lang, account in everything.items():
        pairs = account.labels.get("0", 0) + account.labels.get("1", 0)
        if pairs:
            shares[lang] = account.labels.get("1", 0) / pairs
    return shares


def _pairs(manifest: Manifest, by_length: Mapping[str, dict[str, InstanceCounts]]) -> str:
    convention = manifest.label_convention
    if not convention:
        return "<p>The objective has no sentence pairs.</p>"
    labels = sorted(convention)
    series = [convention[label].replace("_", " ") for label in labels]
    text, events = "", Counter[str]()
    for name, by_language in by_length.items():
        total = totals(by_language).labels
        events.update(
            {f"{name}: {event}".replace("_", " "): n for event, n in totals(by_language).events.items()}
        )
        pairs = sum(total.values()) or 1
        shares = ", ".join(
            f"{total.get(label, 0) / pairs:.1%} {what}" for label, what in zip(labels, series, strict=True)
        )
        rows = [
            Bar(lang, tuple(account.labels.get(label, 0) for label in labels))
            for lang, account in sorted(
                by_language.items(), key=lambda item: (-sum(item[1].labels.values()), item[0])
            )
        ]
        text += f"<h3>{escape(name)}</h3><p class=note>{escape(shares)}</p>" + bars(rows, "pairs", series)
    odd = sorted(((name, count) for name, count in events.items() if count), key=lambda item: -item[1])
    if odd:
        text += "<h3>Exceptions</h3>"
        text += (
            "<p class=note>no random partner: the language has no second document in the bucket, so the pair "
            "is a true one. repeated a: the last sentence of a document was alone, so it is the B of the "
            "sentence before it.</p>"
        )
        text += bars([Bar(name, (count,)) for name, count in odd], "pairs or documents")
    return text


def _masks(by_length: Mapping[str, dict[str, InstanceCounts]]) -> str:
    rows = []
    for name, by_language in by_length.items():
        account = totals(by_language)
        other = account.masked - account.masked_by_mask - account.masked_unchanged
        rows.append(Bar(name, (account.masked_by_mask, other, account.masked_unchanged)))
        if account.sequence_tokens:
            share = account.masked / account.sequence_tokens
            rows[-1] = Bar(f"{name} ({share:.1%} of its tokens)", rows[-1].values)
    return bars(rows, "targets", ("replaced by [MASK]", "replaced by a random token", "unchanged"))
