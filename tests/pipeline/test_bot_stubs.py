from pathlib import Path

from pipeline.bot_stubs import StubLimit, skeleton
from pipeline.config import BuildConfig, Extraction, Source
from pipeline.extract import extract_unit
from pipeline.funnel import Funnel
from pipeline.plan import plan_units
from tests.pipeline.sources.dumps import FOOT, HEAD, page

STUB = "{name} mao ang usa ka espesye sa {genus}. Una ning gihulagway ni {author} niadtong {year}. Wala pa."


def test_a_skeleton_is_what_does_not_vary() -> None:
    one = STUB.format(name="Abacetus abacillus", genus="Abacetus", author="Kolbe", year=1898)
    two = STUB.format(name="Zyras minor", genus="Zyras", author="Casey ug Motschulsky", year=1900)
    three = STUB.format(name="Zyras minor", genus="Zyras", author="Casey", year=2001)
    assert skeleton("Abacetus abacillus", [one]) == skeleton("Zyras minor", [three])
    assert skeleton("Zyras minor", [two]) != skeleton("Zyras minor", [three])
    assert skeleton("X", ["A pier by the water."]) != skeleton("X", ["A pier by the river."])


def test_long_pages_always_pass() -> None:
    limit = StubLimit(1)
    assert not any(limit.exceeded("T", ["The same long page. " * 200]) for _ in range(3))
    assert [limit.exceeded("T", ["The same short page."]) for _ in range(3)] == [False, True, True]
    assert not any(StubLimit(None).exceeded("T", ["The same short page."]) for _ in range(3))


def test_a_cap_leaves_so_many_stubs_and_counts_the_rest(tmp_path: Path) -> None:
    stubs = [
        page(
            n, STUB.format(name=f"Zyras n{n}", genus="Zyras", author="Casey", year=n) * 2, title=f"Zyras n{n}"
        )
        for n in range(1, 1001)
    ]
    words = "river stone water bridge garden winter letter music silver window".split()
    others = [
        page(2000 + n, " ".join(words[(n * k) % 10] for k in range(1, 40)) + f" number {n} pier" * (n + 1))
        for n in range(50)
    ]
    path = tmp_path / "cebwiki.xml"
    path.write_text(HEAD.replace("enwiki", "cebwiki") + "".join(stubs + others) + FOOT)
    config = BuildConfig(
        output="out",
        sources=[Source(name="ceb", kind="wikimedia", paths=[str(path)])],
        extraction=Extraction(max_templated=20),
    )
    funnel = Funnel()
    rows = [
        row["page_id"]
        for unit in plan_units(config)
        for b in extract_unit(unit, config, funnel)
        for row in b.to_pylist()
    ]
    assert funnel.skipped == {"bot-stub": 980}
    assert len(rows) == funnel.kept == 70
    assert [int(number) for number in rows[:20]] == list(range(1, 21))
