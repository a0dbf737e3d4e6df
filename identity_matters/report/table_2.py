"""Table 2 of the paper beside ours: one row for each published error."""

from identity_matters import paper
from identity_matters.report.document import Table
from identity_matters.report.tables import Group

# Row of the paper's table -> the name of the net in variants, DATASET/NET.
NETS = {
    "All-CNN": "all_cnn_c",
    "this paper": "all_conv_residual",
    "ResNet": "resnet",
    "DenseNet": "densenet",
}
NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}
NOT_RUN = "not run"


def table_2(groups: list[Group]) -> Table:
    """Published top-1 errors and ours, of the last and of the best step, at paper scale alone.

    Args:
      groups: of several runs of the same name the last counts.
    """
    ours = {group.name: group for group in groups if group.scale == "paper"}
    rows = []
    for method, numbers in paper.TABLE_2.items():
        for dataset, number in numbers.items():
            variant = f"{dataset}/{NETS[method]}"
            group = next((g for name, g in ours.items() if name.endswith(f"/{variant}")), None)
            last = best = NOT_RUN
            if group is not None:
                last = group.metric("test_error_percent")
                best = group.metric("test_error_best_percent")
            count = str(len(group.runs)) if group is not None else "0"
            note = number.note
            rows.append((method, NAMES[dataset], f"{number.value:g}", last, best, count, note))
    columns = (
        "method",
        "data set",
        "published (%)",
        "ours, last step (%)",
        "ours, best step (%)",
        "n",
        "what the published number is",
    )
    return Table(columns, tuple(rows), cards=True)
