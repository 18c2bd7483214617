"""Methods that read the fits of other methods of the experiment."""

from collections.abc import Callable, Mapping

from permafrost.flows.methods.method import Method
from permafrost.storage.quoting import quoted


def check_read_methods(
    methods: Mapping[str, Method], tasks_of: Callable[[str], tuple[str, ...]]
) -> None:
    """Check that what methods read of each other is there.

    Args:
        methods: of the experiment, by name.
        tasks_of: the tasks that a method is scored on.

    Raises:
        ValueError: the first problem.
    """
    for name, method in methods.items():
        if (read := method.read_method) is None:
            continue
        where = f"methods.{name} reads the method {quoted(read)}"
        if (other := methods.get(read)) is None:
            raise ValueError(f"{where}; there are {', '.join(methods)}")
        try:
            method.require_readable(other)
        except ValueError as error:
            raise ValueError(f"{where}, {error}") from error
        for task in tasks_of(name):
            if task not in tasks_of(read):
                raise ValueError(
                    f"{where} on the task {quoted(task)}, on which that is not trained; give methods.{name} "
                    f"'tasks' of {', '.join(tasks_of(read)) or 'its own'}"
                )
