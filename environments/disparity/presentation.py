"""What a reader is shown of the task: race means, the ratio beside its noise, whole sets."""

from environments.presentation import Chart, Presentation, SetView, Words

PRESENTATION = Presentation(
    words={
        "disparity_ratio": Words("disparity ratio", "largest race mean over smallest; 1 is equal"),
        "gini": Words("Gini coefficient", "inequality of the race means; 0 is equal"),
        "variance": Words("variance of the race means", "0 is equal"),
        "flip_rate": Words("flip rate", "sets whose usual decision changes with race"),
        "mean_invasiveness": Words("mean invasiveness", "0 is the least, 10 the most"),
        "parse_rate": Words("parse rate", "replies in a form that can be read"),
        "clinical_slope": Words("clinical slope", "mean invasiveness of severe minus mild cases"),
        "case_error": Words(
            "case error", "distance of the mean decision from the race-blind reference"
        ),
        "decision_spread": Words("decision spread", "mean distance of two replies to one prompt"),
        "case_spread": Words("case spread", "standard deviation of the case means"),
        "relative_to_white": Words("relative to White", "difference as a share of the White mean"),
        "disparity": Words("disparity", "largest minus smallest race mean of the level"),
        "by_race": Words("By race"),
        "by_field": Words("By decision field"),
        "by_case": Words("By clinical case"),
        "case": Words("clinical case"),
    },
    charts_title="Disparity",
    charts=(
        Chart(
            metric="mean_invasiveness",
            breakdown="by_race",
            axis="mean invasiveness, 0 to 10",
            caption="Mean invasiveness by race, with intervals. Where race makes no difference "
            "the marks line up.",
        ),
        Chart(
            metric="disparity_ratio",
            axis="disparity ratio, 1 is equal",
            caption="Disparity ratio, with intervals.",
            equal=1.0,
            null="race permuted within sets",
        ),
    ),
    one_of_each="case",
    sets=SetView(variant="race", figure="invasiveness", fields="decision", text="rationale"),
)
