"""What navia raises when it is asked for something it cannot do right: one line that says what, why, and what to do."""


class NaviaError(ValueError):
    """Base of every error that navia raises on purpose."""


class ModelError(NaviaError):
    """The model is not one that navia can walk (its class, its parts or its weights)."""


class CheckpointError(ModelError):
    """The checkpoint does not fit the model."""


class InputError(NaviaError):
    """Images, labels or class masks that do not fit the model."""


class SpecError(NaviaError):
    """A reducer, method or option that does not exist or is malformed."""
