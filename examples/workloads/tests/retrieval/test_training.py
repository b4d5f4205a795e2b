"""What a step learns: the whole batch's loss on any number of ranks, teachers that do not learn, and mined documents."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.workloads.alone import begun, kept, train
from examples.workloads.tests.retrieval.ranks import ThreadRank, on_ranks, small, small_settings
from yatt_core.workloads.contract import Draw, RunFacts
from yatt_workloads.retrieval.candidates import CANDIDATES, QUERIES
from yatt_workloads.retrieval.corpus import PADDING
from yatt_workloads.retrieval.encoder import LAYER_SCALE, SCALES, late_interaction
from yatt_workloads.retrieval.losses import distilled, in_terms_of, right_document, student_loss
from yatt_workloads.retrieval.settings import FIXED, RetrievalSettings, read_settings
from yatt_workloads.retrieval.stages import learning_rate, stage_number, stages_of
from yatt_workloads.retrieval.workload import MinedRetrieval, Retrieval

CASCADE = {"method": "cascade", "first": 2, "cross": 1}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def weights(workload: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in workload.state().weights.items()}


@pytest.mark.parametrize("settings", [{"method": "plain"}, {"method": "late"}, {"method": "self"}, CASCADE])
def test_ranks_compute_what_one_rank_computes(settings: dict[str, Any], tmp_path: Path) -> None:
    """Three ranks have shares of different sizes; each query is compared with the documents of all."""
    alone = small(Retrieval, tmp_path / "inputs", 4, **settings)
    expected = train(alone, 3, 1, 4)

    def work(rank: ThreadRank) -> tuple[Any, dict[str, torch.Tensor], Any]:
        workload = Retrieval(RunFacts(seed=3, settings=small_settings(**settings), iterations=4))
        workload.begin(tmp_path / "inputs", rank)
        return train(workload, 3, 1, 4), weights(workload), workload.evaluate()

    first, *others = on_ranks(3, work)
    assert first[0] == pytest.approx(expected, rel=2e-3)
    assert first[2]["accuracy"] == pytest.approx(alone.evaluate()["accuracy"], abs=0.06)
    for metrics, found, figures in others:
        assert (metrics, figures) == (first[0], first[2])
        assert all(torch.equal(found[name], first[1][name]) for name in first[1])


def test_late_interaction_is_the_sum_of_the_best_cosines() -> None:
    queries = torch.randn(3, 4, 5)
    documents = torch.randn(6, 7, 5)
    expected = [
        [sum(max(float(q @ d) for d in document) for q in query) for document in documents] for query in queries
    ]
    torch.testing.assert_close(late_interaction(queries, documents), torch.tensor(expected))


def test_padding_changes_no_score(tmp_path: Path) -> None:
    """A word that fits none of a document's has a negative best cosine, which padding does not raise to 0."""
    queries = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
    documents = -queries.sum((0, 1)).expand(2, 1, 5)
    scores = late_interaction(queries, documents)
    assert bool((scores < 0).any())
    padded = [torch.cat([texts, torch.zeros(len(texts), 2, 5)], 1) for texts in (queries, documents)]
    torch.testing.assert_close(late_interaction(*padded), scores)
    workload = small(Retrieval, tmp_path / "inputs", 6, **CASCADE)
    workload._begin_stage(1)
    words = torch.from_numpy(workload._corpus.queries["dev"].words)
    texts = torch.from_numpy(workload._corpus.documents)
    with torch.no_grad():
        workload._teacher.judgement.weight.normal_(generator=torch.Generator().manual_seed(2))
        short = workload._teacher(words, texts[:, :3])
        longer = workload._teacher(words, torch.cat([texts[:, :3], torch.full((len(texts), 2), PADDING)], 1))
    torch.testing.assert_close(longer, short)


def test_losses() -> None:
    scores = torch.randn(4, 9)
    assert float(distilled(scores, scores, 4.0)) == pytest.approx(0, abs=1e-5)
    assert float(distilled(scores, scores + 3, 4.0)) == pytest.approx(0, abs=1e-4)
    assert float(distilled(scores, -scores, 4.0)) > 0.1
    teacher = in_terms_of(100 * scores + 7, scores)
    torch.testing.assert_close(teacher.std(1), scores.std(1))
    right = torch.tensor([0, 1, 2, 3])
    also = torch.zeros(4, 9, dtype=torch.bool)
    also[:, 8] = True
    torch.testing.assert_close(right_document(scores, right, also), right_document(scores[:, :8], right, also[:, :8]))


def test_each_method_has_its_losses() -> None:
    """Every loss by hand, as multiples of what each teaches; no teacher learns from its pupil."""
    noise = torch.Generator().manual_seed(4)
    dual, late, teacher = (torch.randn(3, 6, generator=noise).requires_grad_() for _ in range(3))
    right = torch.tensor([0, 2, 4])
    also = torch.zeros(3, 6, dtype=torch.bool)
    weights = {"late_to_dual": 3.0, "cross_to_dual": 5.0, "cross_to_late": 7.0, "softening": 2.0}

    def loss(method: str, taught: torch.Tensor | None = None) -> torch.Tensor:
        settings = RetrievalSettings(method=method, **weights)
        return student_loss(
            settings,
            dual=dual if settings.has_dual else None,
            late=late if settings.has_late else None,
            teacher=taught,
            right=right,
            also=also,
        )

    plain = right_document(dual, right, also)
    words = right_document(late, right, also)
    on_the_fly = plain + words + 3 * distilled(dual, late, 2.0)
    from_above = 5 * distilled(dual, in_terms_of(teacher, dual), 2.0) + 7 * distilled(
        late, in_terms_of(teacher, late), 2.0
    )
    torch.testing.assert_close(loss("plain"), plain)
    torch.testing.assert_close(loss("late"), words)
    torch.testing.assert_close(loss("self"), on_the_fly)
    for method in ("cascade", "frozen"):
        torch.testing.assert_close(loss(method, teacher), on_the_fly + from_above)
    (pupil, own) = torch.autograd.grad(3 * distilled(dual, late, 2.0), (dual, late), allow_unused=True)
    assert bool(pupil.abs().sum() > 0) and own is None
    assert torch.autograd.grad(loss("cascade", teacher), [teacher], allow_unused=True) == (None,)


def test_a_cascade_goes_through_its_stages_and_only_one_module_learns_in_each(tmp_path: Path) -> None:
    workload = small(Retrieval, tmp_path / "inputs", 6, **CASCADE)
    seen = []
    before = weights(workload)
    for iteration in range(1, 7):
        train(workload, 3, iteration, iteration)
        now = weights(workload)
        changed = {name.split(".")[0] for name in now if name in before and not torch.equal(now[name], before[name])}
        seen.append((workload.state().facts["stage"], changed))
        before = now
    assert seen == [
        (0, {"student"}),
        (0, {"student"}),
        (1, set()),
        (2, {"student"}),
        (2, {"student"}),
        (2, {"student"}),
    ]
    facts = {"stage": 2, "steps": 9}
    assert workload.state().facts == facts
    assert any(name.startswith("teacher.judgement") for name in before)


def test_a_cross_encoder_begins_as_the_late_interaction(tmp_path: Path) -> None:
    workload = small(Retrieval, tmp_path / "inputs", 6, **CASCADE)
    train(workload, 3, 1, 2)
    workload._begin_stage(1)
    words = torch.from_numpy(workload._corpus.queries["dev"].words)
    documents = torch.from_numpy(workload._corpus.documents)
    with torch.no_grad():
        late = late_interaction(workload._student(words, 0).tokens, workload._student(documents, 1).tokens)
        torch.testing.assert_close(workload._teacher(words, documents), late / workload._settings.late_temperature)


def test_the_control_is_taught_by_the_late_interaction_as_it_was(tmp_path: Path) -> None:
    workload = small(Retrieval, tmp_path / "inputs", 4, method="frozen", first=2)
    train(workload, 3, 1, 2)
    taught = {name.partition(".")[2]: tensor for name, tensor in weights(workload).items()}
    train(workload, 3, 3, 4)
    teacher = {name.partition(".")[2]: tensor for name, tensor in weights(workload).items() if name[0] == "t"}
    assert teacher.keys() == taught.keys()
    assert all(torch.equal(teacher[name], taught[name]) for name in taught)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (Retrieval, CASCADE),
        (Retrieval, {"method": "frozen", "first": 2}),
        (MinedRetrieval, {"mined": 1, "mine_every": 2}),
    ],
)
def test_a_state_that_is_loaded_goes_on_with_the_same_bits(kind: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    going_on = small(kind, tmp_path / "inputs", 6, **settings)
    for iteration in range(1, 7):
        saved = kept(going_on.state())
        loaded = small(kind, tmp_path / "inputs", 6, **settings)
        train(loaded, 3, 1, 1)
        loaded.load(saved)
        assert train(loaded, 3, iteration, iteration) == train(going_on, 3, iteration, iteration)
        states = [{**workload.state().weights, **workload.state().others} for workload in (going_on, loaded)]
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        assert loaded.evaluate() == going_on.evaluate()


@pytest.mark.parametrize(
    ("kind", "mined", "wish"), [(Retrieval, 1, "MinedRetrieval"), (MinedRetrieval, 0, "Retrieval")]
)
def test_the_class_says_whether_documents_are_mined(kind: Any, mined: int, wish: str) -> None:
    with pytest.raises(ValueError, match=rf"mined: expected .*; {wish} is the class .* \(given: {mined}\)"):
        kind(RunFacts(seed=1, settings={"mined": mined}, iterations=20))


@pytest.mark.parametrize("name", ["vector.weight", "token.weight", "body.embeddings.word_embeddings.weight"])
def test_an_encoder_that_is_broken_has_no_figures(name: str, tmp_path: Path) -> None:
    workload = small(MinedRetrieval, tmp_path / "inputs", 6, mined=1, mine_every=2)
    workload.state().weights[f"student.{name}"][3] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        workload.evaluate()
    draw = Draw(seed=3, iteration=3, number=2)
    if "token" not in name:
        with pytest.raises(ValueError, match="not finite"):
            workload.sample(workload.draw(draw), draw)


def test_any_number_of_ranks_has_the_same_figures_and_mines_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: texts are encoded in the same pieces, of which one rank may have none."""
    monkeypatch.setattr("yatt_workloads.retrieval.evaluation.TEXTS_AT_ONCE", 7)
    settings = {"mined": 1, "mine_every": 2}
    alone = small(MinedRetrieval, tmp_path / "inputs", 6, **settings)
    train(alone, 3, 1, 2)
    state = kept(alone.state())
    draw = Draw(seed=3, iteration=3, number=2)

    def found(workload: MinedRetrieval) -> tuple[Any, Any]:
        columns = workload.sample(workload.draw(draw), draw)
        return dict(workload.evaluate()), {name: column.tolist() for name, column in columns.items()}

    def work(rank: ThreadRank) -> tuple[Any, Any]:
        workload = MinedRetrieval(RunFacts(seed=3, settings=small_settings(**settings), iterations=6))
        workload.begin(tmp_path / "inputs", rank)
        workload.load(state)
        return found(workload)

    expected = found(alone)
    assert 0 < expected[0]["accuracy"] < 1
    for count in (2, 4):
        assert on_ranks(count, work) == [expected] * count


def test_a_batch_may_have_fewer_queries_than_there_are_ranks(tmp_path: Path) -> None:
    settings = {"method": "cascade", "first": 1, "cross": 1, "batch": 2}
    alone = small(Retrieval, tmp_path / "inputs", 3, **settings)
    expected = train(alone, 3, 1, 3)

    def work(rank: ThreadRank) -> Any:
        workload = Retrieval(RunFacts(seed=3, settings=small_settings(**settings), iterations=3))
        workload.begin(tmp_path / "inputs", rank)
        return train(workload, 3, 1, 3)

    assert on_ranks(3, work) == [pytest.approx(expected, rel=2e-3)] * 3


def test_late_interaction_mines_what_it_ranks_high_itself(tmp_path: Path) -> None:
    settings = {"method": "late", "mined": 1, "mine_every": 2, "mined_from": 5}
    workload = small(MinedRetrieval, tmp_path / "inputs", 6, **settings)
    train(workload, 3, 1, 2)
    draw = Draw(seed=3, iteration=3, number=2)
    mined = torch.from_numpy(workload.sample(workload.draw(draw), draw)["mined"])
    questions = workload._corpus.queries["train"]
    with torch.no_grad():
        queries = workload._student(torch.from_numpy(questions.words), 0).tokens
        scores = late_interaction(queries, workload._student(torch.from_numpy(workload._corpus.documents), 1).tokens)
    scores.scatter_(1, torch.from_numpy(questions.relevant), -9)
    torch.testing.assert_close(scores.gather(1, mined), scores.topk(5).values)
    workload.state().weights["student.token.weight"][3] = float("nan")
    with pytest.raises(ValueError, match=r"scores of .* queries are not finite"):
        workload.sample(workload.draw(draw), draw)


@pytest.mark.parametrize(
    "name", ["corpus", "train_queries", "query_words", "method", "cross", "width", "token_width", "mined_from"]
)
def test_what_shapes_inputs_or_state_is_not_tunable(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^tunable.{name}: shapes the inputs, the state .* expected it in settings$"):
        Retrieval(RunFacts(seed=1, settings={}, iterations=20, tunable=frozenset({name, "rate"})))


def test_what_shapes_neither_is_tunable(tmp_path: Path) -> None:
    """All other settings: whatever they are, inputs and state have the same form."""
    names = (
        "steps",
        "batch",
        "rate",
        "decay",
        "temperature",
        "late_temperature",
        "softening",
        "late_to_dual",
        "recall_at",
    )
    found = []
    for factor in (1, 2):
        tuned = {name: factor * value for name, value in asdict(RetrievalSettings()).items() if name in names}
        settings = {**small_settings(), **tuned}
        Retrieval(RunFacts(seed=1, settings=settings, iterations=20, tunable=frozenset(names)))
        workload = small(Retrieval, tmp_path / "inputs", 6, **tuned)
        state = workload.state()
        found.append({name: tensor.shape for name, tensor in {**state.weights, **state.others}.items()})
    assert found[0] == found[1]
    of_cascade = {"cross_rate", "cross_to_dual", "cross_to_late"}
    assert {field.name for field in fields(RetrievalSettings)} - FIXED == {*names, *of_cascade}


def test_no_seed_and_no_module_shares_its_noise_with_another(tmp_path: Path) -> None:
    names = ("student.body.embeddings.word_embeddings", "teacher.from_found", "teacher.from_asked", "teacher.from_fit")
    firsts = set()
    for seed in (3, 4, 2**70):
        workload = begun(Retrieval, tmp_path / "inputs", seed=seed, iterations=6, **small_settings(**CASCADE))
        workload._begin_stage(1)
        for name, scale in zip(names, (SCALES["word_embeddings"], LAYER_SCALE, LAYER_SCALE, LAYER_SCALE), strict=True):
            firsts.add(round(float(weights(workload)[f"{name}.weight"].flatten()[0]) / scale, 4))
    assert len(firsts) == 12, "each stream begins with another number"


def test_a_task_that_cannot_be_generated_is_refused_before_a_run_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yatt_workloads.retrieval.generated.MOST_TRIES", 3)
    settings = {"documents": 1_000, "train_queries": 1, "dev_queries": 400, "test_queries": 1}
    with pytest.raises(ValueError, match="documents: 1000 are so many"):
        Retrieval(RunFacts(seed=1, settings=settings, iterations=20)).check_inputs()


def test_negatives_are_mined_from_the_present_state_by_schedule(tmp_path: Path) -> None:
    settings = {"mined": 2, "siblings": 1, "mine_every": 2, "mined_from": 5, "candidates": 5}
    workload = small(MinedRetrieval, tmp_path / "inputs", 6, **settings)
    table = None
    for iteration in range(1, 6):
        draw = Draw(seed=3, iteration=iteration, number=iteration + 3)
        drawn = workload.draw(draw)
        state = kept(workload.state())
        columns = workload.sample(drawn, draw)
        assert all(torch.equal(state.others.whole(name), held) for name, held in workload.state().others.items())
        assert ("mined" in columns) == (iteration in (3, 5))
        if "mined" in columns:
            table = columns["mined"]
            with torch.no_grad():
                corpus = workload._corpus
                queries = workload._student(torch.from_numpy(corpus.queries["train"].words), 0).vectors
                scores = queries @ workload._student(torch.from_numpy(corpus.documents), 1).vectors.T
            scores.scatter_(1, torch.from_numpy(corpus.queries["train"].relevant), -9)
            torch.testing.assert_close(scores.gather(1, torch.from_numpy(table)), scores.topk(5).values)
        candidates = columns[CANDIDATES]
        assert np.array_equal(candidates[..., [0, 1, 4]], drawn[CANDIDATES][..., [0, 1, 4]])
        if table is None:
            assert np.array_equal(candidates, drawn[CANDIDATES])
        else:
            mined = table[columns[QUERIES]]
            assert (mined[:, :, :, None] == candidates[:, :, None, 2:4]).any(2).all()
        workload.update(columns, draw)


def test_the_learning_rate_depends_on_the_iteration_alone() -> None:
    settings = read_settings(CASCADE, 6)
    stages = stages_of(settings, 6)
    assert [stage_number(stages, iteration) for iteration in range(1, 7)] == [0, 0, 1, 2, 2, 2]
    rates = [learning_rate(settings, stages[0], 1 + step // 20, step % 20) for step in range(40)]
    assert rates[0] == pytest.approx(5e-3 / 20) and max(rates) == rates[19] and rates[-1] < rates[20]
    assert learning_rate(settings, stages[1], 3, 0) == pytest.approx(0.5 * 5e-3 / 20)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mthd": "self"}, "mthd: there is no such setting; known: batch, candidates"),
        ({"method": "both"}, "method: 'both' is none; expected one of plain, late, self, cascade, frozen"),
        ({"method": "cascade", "first": 5, "cross": 5}, "leave none of the run's 10 for the student"),
        ({"method": "cascade", "first": 5}, "cross: method cascade expects at least 1 (given: 0)"),
        ({"method": "self", "first": 5}, "first: method self expects 0 (given: 5)"),
        ({"batch": "8"}, "batch: expected a whole number (given: '8')"),
        ({"rate": True}, "rate: expected a number (given: True)"),
        ({"corpus": 3}, "corpus: expected a text (given: 3)"),
        ({"batch": 0}, "batch: expected more than 0 (given: 0)"),
        ({"candidates": 2}, "expected at least 3 (given: 2)"),
        ({"mined": 1, "mine_every": 0}, "mine_every: expected at least 1"),
        ({"mined": 1, "mine_every": 5, "mined_from": 0}, "mined_from: expected at least mined, 1 (given: 0)"),
        (
            {"mined": 1, "mine_every": 10},
            "mine_every: expected less than the run's 10 iterations, or nothing is ever mined",
        ),
        ({"mine_every": 2}, "mine_every: nothing is mined; expected mined to be at least 1"),
        ({"rate": float("inf")}, "rate: expected a finite number (given: inf)"),
        ({"decay": float("nan")}, "decay: expected a finite number (given: nan)"),
        (
            {"method": "late", "temperature": 0.1},
            "temperature: method late does not read it; it belongs to plain, self, cascade, frozen",
        ),
        ({"method": "late", "vector_width": 8}, "vector_width: method late does not read it"),
        ({"method": "plain", "token_width": 8}, "token_width: method plain does not read it; it belongs to late, self"),
        ({"siblings": -1}, "siblings: expected at least 0 (given: -1)"),
        ({"first": -5}, "first: expected at least 0 (given: -5)"),
        ({"late_to_dual": -1}, "late_to_dual: expected at least 0 (given: -1)"),
        ({"width": 18}, "width: expected a multiple of 4 (given: 18)"),
        ({"corpus": "a", "documents": 9}, "documents: is of a generated task, but corpus names one"),
        (
            {"method": "self", "cross_to_dual": 1},
            "cross_to_dual: method self does not read it; it belongs to cascade, frozen",
        ),
    ],
)
def test_settings_that_cannot_be_used(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as refused:
        read_settings(settings, 10)
    assert said in str(refused.value)
