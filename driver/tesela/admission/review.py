"""One review: what the object itself shows is wrong, and what its DeviceClasses show besides.

It refuses only what prepare would refuse. A refusal that rests on a class rests on the class as it is now; where
classes cannot be read, kinds go unchecked and the caller is told: prepare has the last word anyway.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Final

from tesela.admission.classes import Classes
from tesela.core.config_fit import Fit, judge_claim, judge_class
from tesela.core.errors import TryAgain
from tesela.edge.documents.admission import DEVICE_CLASS, Review, parse_review, render_answer

log = logging.getLogger(__name__)

_PARSING: Final = threading.Lock()
"""One at a time: four megabytes of JSON, which anybody in the cluster can send, take a hundred while they are read."""


def answer_review(body: bytes, classes: Classes) -> bytes:
    """An AdmissionReview with its response. DocumentError: `body` is none."""
    with _PARSING:
        review = parse_review(body)
    fit = judge(review, classes)
    if fit.problems:
        log.info("%s %s is refused: %s", review.kind, review.name, "; ".join(fit.problems))
    return render_answer(review.uid, fit)


def judge(review: Review, classes: Classes) -> Fit:
    """Problems and warnings; none where no config is for this driver."""
    if not (review.configs or review.problems):
        return Fit()
    found = _judge_kinds(review, classes)
    return replace(found, problems=(*review.problems, *found.problems))


def _judge_kinds(review: Review, classes: Classes) -> Fit:
    if review.kind == DEVICE_CLASS:
        return judge_class(review.selectors, review.configs)
    try:
        fit = judge_claim(review.asks, review.configs, classes.read())
        if fit.problems:
            fit = judge_claim(review.asks, review.configs, classes.read_anew())
    except TryAgain as error:
        return Fit(warnings=(f"tesela: kinds of configs were not compared with requests: {error}",))
    return fit
