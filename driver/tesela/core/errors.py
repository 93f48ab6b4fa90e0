"""The tree of errors, in one place, so that a caller can tell "never" from "later" by type.

TeselaError
├── StartError          the process cannot work as it was started: say what to do, exit non-zero
├── ClaimRefused        this claim will not be served as it stands; retrying changes nothing
├── TryAgain            busy, away or slow: the same call may succeed later
│   ├── NvmlTimeout     an NVML call did not return in time (docs/invariants.md, 8)
│   └── NvmlReleased    NVML is closed for the operator's work on the GPU driver (`tesela release-gpu`)
├── StateError          a file of ours is unreadable or contradicts what lives
│   └── OtherRelease    a file of ours is written by another release of tesela
├── DocumentError       a document from outside (config, policy, manifest) is malformed; names the field
├── NvmlError           NVML answered with a code other than SUCCESS
└── ApiError            the Kubernetes API answered with an error
    ├── ApiNotFound     404
    ├── ApiConflict     409, and 422 on a failed precondition: read again
    ├── ApiGone         410: a watch or a list has to start over
    └── ApiUnavailable  no answer, 429 or 5xx

Only new leaves belong here. A message names the claim, the device, the cause and the next step, and never holds a
response body or a secret.
"""

from __future__ import annotations


class TeselaError(Exception):
    """Anything Tesela raises on purpose."""


class StartError(TeselaError):
    """The process cannot work as it was started; the message is one line that says what to do."""


class ClaimRefused(TeselaError):
    """This claim will not be served as it stands; the kubelet shows the message on the pod."""


class TryAgain(TeselaError):
    """Nothing is wrong with the claim; the same call may succeed later."""


class NvmlTimeout(TryAgain):
    """An NVML call did not return within its watchdog's limit; its GPU is suspect."""


class NvmlReleased(TryAgain):
    """NVML is closed, so that the operator can work on the GPU driver or a GPU; the message says who asked for it."""


class StateError(TeselaError):
    """A file of ours is unreadable, or contradicts what lives on the GPU."""


class OtherRelease(StateError):
    """A file of ours is whole, and in a version that this release does not read."""


class DocumentError(TeselaError):
    """A document from outside is malformed; `path` names the field, as in `sharing.timeSlicingConfig.interval`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.problem = problem


class NvmlError(TeselaError):
    """NVML answered `code` (nvmlReturn_t) to `function`; see `tesela.edge.nvml.codes` for the names."""

    def __init__(self, code: int, function: str, text: str = "") -> None:
        super().__init__(f"{function}: {text or 'NVML error'} ({code})")
        self.code = code
        self.function = function
        self.text = text


class ApiError(TeselaError):
    """The Kubernetes API answered with HTTP `status` and a `reason` of its Status object."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{message} ({status} {reason})" if reason else f"{message} ({status})")
        self.status = status
        self.reason = reason
        self.message = message


class ApiNotFound(ApiError):
    """The object is not there (404)."""


class ApiConflict(ApiError):
    """The object changed meanwhile, exists already, or a precondition failed (409): read it again."""


class ApiGone(ApiError):
    """The resource version is too old (410): list again."""


class ApiUnavailable(ApiError, TryAgain):
    """The API server did not answer (status 0), or answered 429 or 5xx.

    `retry_after_s` is what its Retry-After header asked for.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(status, reason, message)
        self.retry_after_s = retry_after_s
