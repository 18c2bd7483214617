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
        for read in method.read_methods:
            if read not in methods:
                raise ValueError(
                    f"methods.{name} reads the method {quoted(read)}; there are {', '.join(methods)}"
                )
        if not method.read_methods:
            continue
        try:
            method.require_readable({read: methods[read] for read in method.read_methods})
        except ValueError as error:
            raise ValueError(f"methods.{name} reads other methods: {error}") from error
        for read in method.read_methods:
            for task in tasks_of(name):
                if task not in tasks_of(read):
                    raise ValueError(
                        f"methods.{name} reads the method {quoted(read)} on the task {quoted(task)}, on "
                        f"which that is not trained; give methods.{name} 'tasks' of "
                        f"{', '.join(tasks_of(read)) or 'its own'}"
                    )
