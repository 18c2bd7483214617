"""Evaluation on mteb's tasks, by name or from local files, with vectors from the feature store.

mteb itself is imported when a task of its own is looked up, and when a task runs.
"""

from typing import TYPE_CHECKING

from permafrost.stages.late_names import late_names

if TYPE_CHECKING:
    from permafrost.stages.mteb_evaluation.evaluate import (
        EvaluationResult,
        TaskFacts,
        evaluate_task,
        task_facts,
    )
    from permafrost.stages.mteb_evaluation.instructions import (
        Instructions,
        NoInstructions,
        task_instructions,
    )
    from permafrost.stages.mteb_evaluation.layer_choice import (
        ChoiceTask,
        LayerChoice,
        choose_by_tasks,
    )
    from permafrost.stages.mteb_evaluation.recording import hub_corpus
    from permafrost.stages.mteb_evaluation.suites import SUITE_NAMES, SuiteName, suite
    from permafrost.stages.mteb_evaluation.task import (
        EVALUATION_TASKS,
        LOCAL_TASKS,
        EvaluationTask,
        LocalTask,
        MtebTask,
        Role,
    )
    from permafrost.stages.mteb_evaluation.tasks.hub import HubTask
    from permafrost.stages.mteb_evaluation.vectors import Embedding, FeaturesOf

__getattr__ = late_names(__name__)

__all__ = [
    "EVALUATION_TASKS",
    "LOCAL_TASKS",
    "SUITE_NAMES",
    "ChoiceTask",
    "Embedding",
    "EvaluationResult",
    "EvaluationTask",
    "FeaturesOf",
    "HubTask",
    "Instructions",
    "LayerChoice",
    "LocalTask",
    "MtebTask",
    "NoInstructions",
    "Role",
    "SuiteName",
    "TaskFacts",
    "choose_by_tasks",
    "evaluate_task",
    "hub_corpus",
    "suite",
    "task_facts",
    "task_instructions",
]
