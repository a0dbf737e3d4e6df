"""Verdicts on the networks of `memorize`: their errors and their sizes.

The networks that a verdict is about, its fits, are the records of one kind of trials.
"""

import numpy as np

from experiments import run
from experiments.run.verdicts import largest, least, total, under_attack, where
from identity_matters import paper

# Kinds of trials whose record is that of one network.
_KINDS_OF_FITS = ("fit", "few_numbers", "retrieval")
# Fields of other trials that hold the record of a network, too.
_ALSO_BUILT = ("constructed", "float32_result", "float64_result")
# Kind of trial -> fields reported for every trial,
# as metrics with the number of examples in their names.
_BY_SIZE = {
    "separation": ("rho", "theorem_width", "lemma_width"),
    "minimal_width": ("least_fitting_width", "least_certified_width"),
}


# The verdicts.


def judge_theorem(settings: dict, records: list[dict]) -> run.Verdict:
    """Theorem 3.2: every labelling has a certified network, none of which errs."""
    metrics = _theorem_metrics(records)
    verdict = under_attack(
        refuted=_some_certified_network_errs(metrics),
        attacked=_all_are_fitted(where(records, kind="fit"), metrics),
    )
    return run.Verdict("theorem-3-2", metrics, verdict)


def judge_few_numbers(settings: dict, records: list[dict]) -> run.Verdict:
    """The same for networks whose numbers hold several labels each, and are few."""
    fits = where(records, kind="few_numbers")
    largest_fits = _largest_certified(fits)
    metrics = {
        **_network_metrics(records),
        **_error_metrics(largest_fits),
        **_few_numbers_metrics(largest_fits),
    }
    are_small = all(map(_stores_as_few_numbers_as_stated, _certified(fits)))
    verdict = under_attack(
        refuted=_some_certified_network_errs(metrics),
        attacked=_all_are_fitted(fits, metrics) and are_small,
    )
    return run.Verdict("few-numbers", metrics, verdict)


def judge_retrieval(settings: dict, records: list[dict]) -> run.Verdict:
    """The same for hashed tables, which must be small enough, too."""
    fits = where(records, kind="retrieval")
    metrics = {
        **_network_metrics(records),
        **_error_metrics(_largest_certified(fits)),
        **_retrieval_metrics(_certified(fits)),
    }
    allowed = settings["retrieval"]["most_cells_per_point"]
    are_small = all(map(_stores_a_table_and_little_else, _certified(fits)))
    is_small = are_small and metrics["cells_per_point"] <= allowed
    verdict = under_attack(
        refuted=_some_certified_network_errs(metrics),
        attacked=_all_are_fitted(fits, metrics) and is_small,
    )
    return run.Verdict("information-floor", metrics, verdict)


def judge_printed_width(settings: dict, records: list[dict]) -> run.Verdict:
    """Refuted if the width of the printed proof does not preserve norms."""
    # Of several sets of points, the one that comes last in the settings.
    record = where(records, kind="printed_width")[-1]
    metrics = {**_theorem_metrics(records), **_printed_width_metrics(record)}
    share = metrics["draws_with_all_norms_inside"] / record["draws"]
    refuted = share < settings["printed_width"]["least_inside_share"]
    return run.Verdict("theorem-3-2-constant", metrics, under_attack(refuted))


def _some_certified_network_errs(metrics: dict) -> bool:
    return metrics["certified_errors"] > 0


def _all_are_fitted(fits: list[dict], metrics: dict) -> bool:
    """Whether there are labellings, and each has a certified network."""
    every_labelling_is_fitted = _labellings(fits) == _labellings(_certified(fits))
    return metrics["certified_networks"] > 0 and every_labelling_is_fitted


def _labellings(fits: list[dict]) -> set[tuple]:
    """What was to be fitted: (data set, number of examples, labels)."""
    return {(fit["dataset"], fit["examples"], fit.get("labels")) for fit in fits}


def _stores_as_few_numbers_as_stated(fit: dict) -> bool:
    """Whether a network stores the numbers that (E11) counts."""
    stated = paper.few_numbers(
        examples=fit["examples"],
        features=fit["features"],
        num_classes=fit["num_classes"],
        group_points=fit["group_points"],
        width=fit.get("width", 6),  # 6 unless the settings say otherwise
    )
    return fit["numbers"] == sum(stated)


def _stores_a_table_and_little_else(fit: dict) -> bool:
    """Whether a network stores the numbers that (E14) counts."""
    num_classes = fit["num_classes"]
    output_and_machine = num_classes**2 + 9 * num_classes + 1114
    stated = fit["input_map_numbers"] + fit["word_numbers"] + output_and_machine
    return fit["numbers"] == stated


def _certified(fits: list[dict]) -> list[dict]:
    """The fits whose certificate holds; those that were refused have none."""
    return [fit for fit in fits if fit.get("certified")]


def _largest_certified(fits: list[dict]) -> list[dict]:
    """The certified fits with the most examples."""
    certified = _certified(fits)
    return where(certified, examples=largest(certified, "examples"))


# Metrics of all networks, whatever they are built for.


def _network_metrics(records: list[dict]) -> dict:
    """How many networks were built, refused and certified, and their errors."""
    networks = _networks(records)
    answered = [network for network in networks if "refused" not in network]
    certified = where(answered, certified=True)
    uncertified = where(answered, certified=False)
    return {
        "networks": len(networks),
        "refused_networks": len(networks) - len(answered),
        "uncertified_networks": len(uncertified),
        "uncertified_errors": total(uncertified, "errors"),
        "certified_networks": len(certified),
        "certified_errors": total(certified, "errors"),
    }


def _networks(records: list[dict]) -> list[dict]:
    """The records of networks, those inside of other records included."""
    networks = []
    for record in records:
        if record["kind"] in _KINDS_OF_FITS:
            networks.append(record)
        networks += record.get("tried", [])
        networks += [record[name] for name in _ALSO_BUILT if name in record]
    return networks


def _error_metrics(fits: list[dict]) -> dict:
    """Errors and times of fits with the same number of examples; none without fits."""
    if not fits:
        return {}
    return {
        "examples": largest(fits, "examples"),
        "errors": total(fits, "errors"),
        "max_abs_error": largest(fits, "max_abs_error"),
        "build_and_verify_seconds_max": max(
            fit["build_seconds"] + fit["verify_seconds"] for fit in fits
        ),
    }


# Metrics of the networks of Theorem 3.2, and of what they are compared with.


def _theorem_metrics(records: list[dict]) -> dict:
    """Errors and sizes of the fits, separations and widths, and SGD for contrast."""
    fits = _largest_certified(where(records, kind="fit"))
    return {
        **_network_metrics(records),
        **_error_metrics(fits),
        **_block_parameter_metrics(fits),
        **_size_metrics(records),
        **_sgd_metrics(where(records, kind="sgd")),
    }


def _block_parameter_metrics(fits: list[dict]) -> dict:
    if not fits:
        return {}
    return {
        "block_parameters_min": least(fits, "block_parameters"),
        "block_parameters_max": largest(fits, "block_parameters"),
    }


def _size_metrics(records: list[dict]) -> dict:
    """The fields of `_BY_SIZE`, with precision and number of examples in the names."""
    metrics = {}
    for record in records:
        precision = f"_{record['precision']}" if "precision" in record else ""
        for name in _BY_SIZE.get(record["kind"], ()):
            metrics[f"{name}{precision}_n{record['examples']}"] = record[name]
    return metrics


def _sgd_metrics(trained: list[dict]) -> dict:
    """The fewest errors that SGD leaves, over its learning rates."""
    if not trained:
        return {}
    best = min(trained, key=lambda record: record["errors"])
    return {
        "sgd_examples": best["examples"],
        "sgd_best_errors": best["errors"],
        "sgd_best_learning_rate": best["learning_rate"],
        "sgd_best_train_seconds": best["train_seconds"],
    }


def _printed_width_metrics(record: dict) -> dict:
    """How many norms the printed width lost, and how many were to be expected."""
    return {
        "printed_width": record["width"],
        "draws": record["draws"],
        "draws_with_all_norms_inside": record["norms_outside"].count(0),
        "norms": record["examples"],
        "mean_norms_outside": float(np.mean(record["norms_outside"])),
        "expected_norms_outside": record["expected_norms_outside"],
    }


# Metrics of the networks whose numbers hold several labels.


def _few_numbers_metrics(fits: list[dict]) -> dict:
    """The fewest numbers, and those that each precision and width needs."""
    if not fits:
        return {}
    fewest = min(fits, key=lambda fit: fit["numbers"])
    metrics = {
        "fewest_numbers": fewest["numbers"],
        "group_points": fewest["group_points"],
        "largest_integer": fewest["largest_integer"],
        "counting_lower_bound": fewest["counting_lower_bound"],
    }
    with_word_bits = [fit for fit in fits if "word_bits" in fit]
    for word_bits in dict.fromkeys(fit["word_bits"] for fit in with_word_bits):
        metrics |= _metrics_of_word_bits(
            word_bits, where(with_word_bits, word_bits=word_bits)
        )
    return metrics


def _metrics_of_word_bits(word_bits: int, fits: list[dict]) -> dict:
    """The numbers that each width needs, and the width that needs the fewest."""
    fewest = min(fits, key=lambda fit: fit["numbers"])
    metrics = {f"best_width_bits{word_bits}": fewest["width"]}
    for fit in fits:
        metrics[f"numbers_bits{word_bits}_width{fit['width']}"] = fit["numbers"]
    return metrics


def _retrieval_metrics(fits: list[dict]) -> dict:
    """Stored numbers by input map, and what no network can do without."""
    if not fits:
        return {"cells_per_point": np.inf}
    metrics = {
        "fewest_numbers": least(fits, "numbers"),
        "largest_integer": largest(fits, "largest_integer"),
        "counting_lower_bound": fits[0]["counting_lower_bound"],
        "cells_per_point": max(fit["table_digits"] / fit["examples"] for fit in fits),
        "word_numbers": largest(fits, "word_numbers"),
    }
    for fit in fits:
        metrics[f"numbers_{fit['input_map']}"] = fit["numbers"]
        metrics[f"input_map_numbers_{fit['input_map']}"] = fit["input_map_numbers"]
    return metrics
