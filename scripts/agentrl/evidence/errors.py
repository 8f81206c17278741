"""The base of every error that a user can mend; commands print such an error as one line and keep a bug's traceback."""


class StudyError(Exception):
    """Bad input, a damaged file, a machine that lacks something: the message names it, what was found, what was expected, what to do."""
