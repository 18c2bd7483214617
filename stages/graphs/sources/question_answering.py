"""Multiple-choice questions with subgraphs of a knowledge graph (CommonsenseQA, OpenBookQA, MedQA)."""

import hashlib
import heapq
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from permafrost.stages.bounds import MAX_SEED, MAX_TEXTS
from permafrost.stages.corpus.columns import LABELLED_SPLITS, TaskKind
from permafrost.stages.corpus.names import TEXT, find_column
from permafrost.stages.corpus.table_files import (
    column_names,
    content_sha256,
    file_format,
    read_columns,
)
from permafrost.stages.corpus.values import ids_of
from permafrost.stages.graphs.assembling import Case, Item, assemble
from permafrost.stages.graphs.fact_kinds.none import NoFacts
from permafrost.stages.graphs.facts import Asked, FactsConfig
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.stages.graphs.linked import LinkedSource, Wanted, require_labelled_splits
from permafrost.stages.graphs.question_files import (
    CHOICES,
    IDS,
    LABEL,
    QUESTION,
    Question,
    QuestionColumns,
    read_questions,
)
from permafrost.stages.graphs.relation_table import relation_words
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted

Split = tuple[str, list[Question]]


class GraphQuestions(LinkedSource):
    """Questions with choices; every choice is an item, its text the question and the choice.

    ```yaml
    kind: graph_questions
    files: {train: commonsenseqa/train.parquet, dev: commonsenseqa/dev.parquet}
    inhouse_train_qids: commonsenseqa/inhouse_train_qids.parquet
    knowledge: {kind: triples, path: conceptnet_cn100k/train.parquet, relations: merged}
    ```

    Entities of a choice are answer entities, others of the question query entities.
    """

    kind: Literal["graph_questions"] = "graph_questions"
    files: dict[str, str] = Field(min_length=1)
    """Split to path: .parquet, .jsonl, .csv or .tsv; see `question_files` for the forms that are read."""
    question: str = QUESTION[0]
    """Column; one whose name is not given may also have another usual name, as for the others."""
    choices: str = CHOICES[0]
    """Column with the choices."""
    label: str = LABEL[0]
    """Number of the right choice from 0, its label, its letter, or its text."""
    id: str = IDS[0]
    """Column with the question's id."""
    inhouse_train_qids: str | None = None
    """File with the ids of the training questions that stay in train: the others become test. For sets whose
    test labels are hidden."""
    n_train: int | None = Field(default=None, ge=1, le=MAX_TEXTS)
    """Training questions that are kept, those with the lowest seeded hashes; None for all."""
    train_seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """Another seed, another choice of them."""
    graph_per: Literal["choice", "question"] = "choice"
    """`choice`: each has a graph of its own, as in QA-GNN; `question`: one for all its choices, whose
    entities are all answer entities."""
    query_text: Literal["question_and_choice", "question"] = "question_and_choice"
    """What the query node starts from: the item's text, facts included, or the question alone."""
    with_facts: FactsConfig = NoFacts()
    """Facts put before the question. They are part of the text, and are not linked."""

    @property
    def task_kind(self) -> TaskKind:
        """A choice among several texts."""
        return "multiple_choice"

    @model_validator(mode="after")
    def _splits_are_known(self) -> "GraphQuestions":
        require_labelled_splits(list(self.files))
        return self

    @model_validator(mode="after")
    def _chooses_from_train(self) -> "GraphQuestions":
        if self.n_train is not None and "train" not in self.files:
            raise ValueError(
                f"n_train is {self.n_train}, but the splits in 'files' are {', '.join(self.files)}; give "
                "train, or leave n_train out"
            )
        return self

    @model_validator(mode="after")
    def _inhouse_split_is_of_train(self) -> "GraphQuestions":
        if self.inhouse_train_qids is not None and (
            "train" not in self.files or "test" in self.files
        ):
            raise ValueError(
                "inhouse_train_qids divides train into train and test, but the splits in 'files' are "
                f"{', '.join(self.files)}; give train, and no test"
            )
        return self

    def facts(self) -> dict[str, Any]:
        """Digests of the files instead of their names, and everything that affects how they are read."""
        return {
            **self.model_dump(mode="json"),
            **self.linked_facts(),
            "files": {split: _identity(path) for split, path in self.files.items()},
            "inhouse_train_qids": (
                None if self.inhouse_train_qids is None else _identity(self.inhouse_train_qids)
            ),
            "with_facts": self.with_facts.facts(),
        }

    def build_showing(self, progress: Progress, device: str = "auto") -> GraphCorpus:
        """Read the questions, choose their facts, and cut out a subgraph for each choice.

        Raises:
            InputError: see `read_questions`, `Facts.choose` and `LinkedSource.cut_graphs`; or the ids of
                the in-house split are not those of training questions, or fewer than `n_train` are there.
        """
        splits = self._splits()
        questions = [question for _, some in splits for question in some]
        graphs, knowledge, left_out = self.cut_graphs(self._wanted(questions), progress, device)
        facts = self.with_facts.choose(
            [Asked(q.text, choice, q.gold) for q in questions for choice in q.choices]
        )
        cases: list[Case] = []
        item = 0
        for split, some in splits:
            for question in some:
                items: list[Item] = []
                for choice in question.choices:
                    graph = item if self.graph_per == "choice" else len(cases)
                    text = " ".join((*map(_sentence, facts[item]), question.text, choice))
                    query = question.text if self.query_text == "question" else None
                    items.append(Item(text, graph, query))
                    item += 1
                cases.append(Case(split, tuple(items), question.label))
        return assemble(
            "multiple_choice",
            cases,
            graphs,
            knowledge.relations,
            relation_words=relation_words(knowledge.relations, self.knowledge.words),
            left_out=left_out,
        )

    def _splits(self) -> list[Split]:
        """The questions of every split, after the in-house one was made."""
        columns = QuestionColumns(
            self.question, self.choices, self.label, self.id, self.with_facts.gold_column
        )
        needs_ids = self.inhouse_train_qids is not None
        splits: list[Split] = []
        for split in (name for name in LABELLED_SPLITS if name in self.files):
            path = Path(self.files[split])
            is_inhouse = needs_ids and split == "train"
            questions = read_questions(path, columns, needs_ids=is_inhouse)
            splits.append((split, questions))
        _require_same_number(splits, self.files)
        if self.inhouse_train_qids is not None:
            train, test = _divided(splits[0][1], self.inhouse_train_qids, self.files["train"])
            splits = [("train", train), *splits[1:], ("test", test)]
        return [(split, self._kept(some) if split == "train" else some) for split, some in splits]

    def _kept(self, train: list[Question]) -> list[Question]:
        """The training questions that are used, in their order."""
        if self.n_train is None:
            return train
        if self.n_train > len(train):
            raise InputError(
                f"n_train is {self.n_train}, but there are {len(train)} training questions in "
                f"{self.files['train']}"
                + (f" with an id of {self.inhouse_train_qids}" if self.inhouse_train_qids else "")
                + "; lower it, or leave it out to use all"
            )

        def order(at: int) -> str:
            # By what is asked, so that the order of the file does not matter.
            said = "\n".join((str(self.train_seed), train[at].text, *train[at].choices))
            return hashlib.sha256(said.encode()).hexdigest()

        kept = heapq.nsmallest(self.n_train, range(len(train)), key=order)
        return [train[at] for at in sorted(kept)]

    def _wanted(self, questions: Sequence[Question]) -> list[Wanted]:
        if self.graph_per == "question":
            return [Wanted(q.text, q.text, q.choices) for q in questions]
        return [
            Wanted(f"{q.text} {choice}", q.text, (choice,))
            for q in questions
            for choice in q.choices
        ]


def _sentence(fact: str) -> str:
    return fact if fact.endswith((".", "!", "?")) else f"{fact}."


def _identity(path: str) -> dict[str, str]:
    return {"format": file_format(Path(path)), "sha256": content_sha256(Path(path))}


def _require_same_number(splits: Sequence[Split], files: dict[Any, str]) -> None:
    (first, questions), *others = splits
    for split, some in others:
        if len(some[0].choices) != len(questions[0].choices):
            raise InputError(
                f"the questions of {files[split]} have {len(some[0].choices)} choices, those of "
                f"{files[first]} have {len(questions[0].choices)}; give files of one set of questions"
            )


def _divided(
    questions: Sequence[Question], ids_path: str, where: str
) -> tuple[list[Question], list[Question]]:
    """The questions whose ids are in a file, and the others."""
    path = Path(ids_path)
    names = column_names(path)
    usual = (*IDS, *TEXT)
    name = names[0] if len(names) == 1 else find_column("id", IDS[0], usual, names, ids_path)
    kept = set(ids_of(read_columns(path, [], [], ids=[name]), name, ids_path))
    keys = [question.key for question in questions]
    if len(own := set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputError(
            f"the id {quoted(twice)} is that of {keys.count(twice)} questions of {where}; give every "
            "question an id of its own"
        )
    if file_format(path) in ("csv", "tsv") and name in own - kept:
        raise InputError(
            f"the column of {ids_path} is called {quoted(name)}, which is the id of a question of {where} "
            "and would be lost: the file seems to have no header; write one above the ids, such as id, or "
            "name the file .txt"
        )
    if unknown := sorted(kept - own):
        raise InputError(
            f"{ids_path} has {len(unknown)} ids of {len(kept)} that no question of {where} has, such as "
            f"{quoted(unknown[0])} (a question there has {quoted(keys[0])}); give ids of training questions"
        )
    train = [q for q in questions if q.key in kept]
    test = [q for q in questions if q.key not in kept]
    if not train or not test:
        raise InputError(
            f"{ids_path} has the ids of {len(train)} of the {len(questions)} questions of {where}, which "
            f"leaves {'test' if train else 'train'} empty; give the ids of some of them"
        )
    return train, test
