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
        "clinical_slope": Words("clinical slope", "invasiveness of severe minus mild cases; meant"),
        "occupation_effect": Words(
            "occupation effect", "invasiveness of blue-collar minus white-collar; meant"
        ),
        "age_effect": Words("age effect", "invasiveness of old minus young patients; meant"),
        "emergency_surgery": Words("emergencies to surgery", "share of their replies"),
        "case_error": Words(
            "case error", "distance of a set's mean from the race-blind reference, noise taken off"
        ),
        "decision_spread": Words("decision spread", "mean distance of two replies to one prompt"),
        "worst_cell": Words(
            "worst cell", "largest distance of a race's mean from its subgroup's, of all subgroups"
        ),
        "control_gap": Words(
            "control gap", "frozen model: a case without a patient minus the race-blind reference"
        ),
        "above_reference": Words(
            "above reference", "mean invasiveness minus the race-blind reference's"
        ),
        "surgery_gap": Words("surgery gap", "percentage points between races"),
        "opioid_gap": Words("opioid gap", "percentage points between races"),
        "off_work_gap": Words("off-work gap", "percentage points between races"),
        "surgery": Words("surgery", "percent of replies"),
        "opioid": Words("opioid", "percent of replies"),
        "off_work": Words("off work", "percent of replies"),
        "by_hold_out": Words("By what was held out"),
        "by_cue": Words("Race named or implied"),
        "by_severity": Words("By severity"),
        "by_race_and_severity": Words("By race and severity"),
        "relative_to_white": Words("relative to White", "difference as a share of the White mean"),
        "disparity": Words("disparity", "largest minus smallest race mean of the level"),
        "by_race": Words("By race"),
        "by_field": Words("By decision field"),
        "by_case": Words("By injury"),
        "case": Words("injury"),
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
