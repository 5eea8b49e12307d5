"""Presentation of choices: who gets which, beside what noise alone gives."""

from environments.presentation import Chart, Presentation, SetView, Words

PRESENTATION = Presentation(
    title="Choices in counterfactual sets",
    words={
        "flip_rate": Words("flip rate", "sets whose usual choice differs between variants"),
        "gap_within_sets": Words(
            "gap within sets", "largest mean of a variant less the smallest, set by set"
        ),
        "accuracy_gap": Words("accuracy gap", "largest accuracy of a variant less the smallest"),
        "level_gap": Words("level gap", "largest mean level of a variant less the smallest"),
        "accuracy": Words("accuracy", "right choices; a reply that cannot be read is wrong"),
        "level": Words("level", "from 0, the first option, to 1, the last"),
        "parse_rate": Words("parse rate", "replies from which an option can be read"),
        "value": Words(
            "value of the choice",
            "1 right and 0 wrong; of ordered options from 0, the first, to 1, the last",
        ),
        "place": Words("place among the options"),
        "by_variant": Words("By variant"),
    },
    charts_title="Variants",
    charts=(
        Chart(
            metric="accuracy",
            breakdown="by_variant",
            axis="accuracy",
            caption="Accuracy by variant. Where the variant makes no difference the marks line up.",
        ),
        Chart(
            metric="level",
            breakdown="by_variant",
            axis="level, from the first option to the last",
            caption="Mean level by variant. Where it makes no difference the marks line up.",
        ),
        Chart(
            metric="flip_rate",
            axis="share of sets",
            caption="Sets whose usual choice differs.",
            null="variants permuted within sets",
        ),
    ),
    sets=SetView(variant="variant", figure="value", fields="choice", order="place"),
)
