"""The one exception that means "the user can mend this": it is shown without a traceback."""


class UserError(Exception):
    """A mistake in what was asked or given, not in this code.

    The message says what is wrong, where, and what to do. Entry points print it to stderr
    and exit with status 2 (:func:`mindspeed_llm.console.entry_point`).
    """
