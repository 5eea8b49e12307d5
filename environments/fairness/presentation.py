"""Presentation of the task: a rate by value, its gap beside noise, whole sets."""

from environments.fairness.decision import Design
from environments.fairness.spine import SPINE
from environments.presentation import Chart, Finding, Presentation, SetView, Words

#: Metadata keys of what is known of a patient's back, in the cases that come with the project.
_FINDINGS = ("severity", "pain", "deficit", "imaging", "course")
#: Figures of the cases that come with the project, which have these names in no other.
_OF_SPINE = {
    "occupation_effect": Words(
        "occupation effect", "invasiveness of blue-collar minus white-collar; meant"
    ),
    "age_effect": Words("age effect", "invasiveness of old minus young patients; meant"),
    "emergency_surgery": Words("emergencies to surgery", "share of their replies"),
    "surgery_gap": Words("surgery gap", "percentage points between races"),
    "opioid_gap": Words("opioid gap", "percentage points between races"),
    "off_work_gap": Words("off-work gap", "percentage points between races"),
    "surgery": Words("surgery", "percent of replies"),
    "opioid": Words("opioid", "percent of replies"),
    "off_work": Words("off work", "percent of replies"),
    "by_case": Words("By injury"),
    "case": Words("injury"),
    "relative_to_white": Words("relative to White", "difference as a share of the White mean"),
}


def presentation_of(design: Design) -> Presentation:
    name = design.attribute.replace("_", " ")
    section, rate = f"by_{design.attribute}", next(iter(design.rates))
    if design is SPINE:
        text = "{most} patients were sent to surgery {value} percentage points more often than"
        text, axis = f"{text} {{least}} patients", "percent of replies that send to surgery"
    else:
        field = design.rates[rate].replace("_", " ")
        text = f"the most {field} was chosen {{value}} percentage points more often for {{most}}"
        text, axis = f"{text} than for {{least}} patients", f"percent with the most {field}"
    return Presentation(
        words=_words(design, name) | (_OF_SPINE if design is SPINE else {}),
        findings=(Finding(f"{rate}_gap", text, breakdown=section, measure=rate),),
        charts_title=f"By {name}",
        charts=(
            Chart(
                metric=rate,
                breakdown=section,
                axis=axis,
                caption=f"By {name}, with intervals. If {name} makes no difference the marks line "
                "up.",
            ),
            Chart(
                metric=f"{rate}_gap",
                axis=f"gap between the {name} with most and least, percentage points",
                caption="The gap.",
                null=f"{name} permuted within sets",
            ),
        ),
        one_of_each="case",
        sets=SetView(
            variant=design.attribute,
            figure="invasiveness",
            fields="decision",
            text="rationale",
            patient=(*_FINDINGS, *design.factors) if design is SPINE else design.factors,
        ),
    )


def _words(design: Design, name: str) -> dict[str, Words]:
    first, maximum = design.values[0], design.form.most_invasive
    fields = {rate: field.replace("_", " ") for rate, field in design.rates.items()}
    meant = {
        effect: f"invasiveness of {design.meant[factor][-1]} minus {design.meant[factor][0]}"
        for factor, effect in design.effects.items()
    }
    return {
        "blind_distance": Words(
            f"energy distance to the {name}-blind reference",
            f"of each {name}'s whole decisions from the pooled replies of the model before "
            "training; 0 is equal",
        ),
        f"{design.attribute}_distance": Words(
            f"energy distance between {name} values",
            f"of each {name}'s decisions from those of all; the part of the distance from the "
            f"reference that {name} makes",
        ),
        "disparity_ratio": Words(
            "disparity ratio", f"largest {name} mean over smallest; 1 is equal"
        ),
        "gini": Words("Gini coefficient", f"inequality of the {name} means; 0 is equal"),
        "variance": Words(f"variance of the {name} means", "0 is equal"),
        "flip_rate": Words("flip rate", f"sets whose usual decision changes with {name}"),
        "mean_invasiveness": Words("mean invasiveness", f"0 is the least, {maximum} the most"),
        "parse_rate": Words("parse rate", "replies in a form that can be read"),
        "parse_gap": Words("parse gap", f"between the {name} that is read most and least often"),
        **{
            effect: Words(effect.replace("_", " "), f"{description}; meant")
            for effect, description in meant.items()
        },
        "clinical_slope": Words("clinical slope", "invasiveness of severe minus mild cases; meant"),
        "case_error": Words(
            "case error",
            f"distance of a set's mean from the {name}-blind reference, noise taken off",
        ),
        "decision_spread": Words("decision spread", "mean distance of two replies to one prompt"),
        "wording_distance": Words(
            "wording distance",
            f"energy distance of the words that two {name} values are told, by the words that both "
            "texts have; 0 is equal",
        ),
        f"names_{design.attribute}": Words(
            f"names {name}", "share of replies that name or imply one"
        ),
        f"names_other_{design.attribute}": Words(
            f"names another {name}",
            "share of replies that name or imply one which the patient has not",
        ),
        "contradicts_prompt": Words(
            "contradicts the prompt",
            "share of replies with words of other patients alone, whom another age, work, ... has",
        ),
        "words": Words("words", "in the reply beside the decision"),
        **{
            f"{amount}_ratio": Words(
                f"{amount.replace('_', ' ')} ratio",
                f"largest {name} mean over smallest; 1 is equal",
            )
            for amount in design.form.amounts
        },
        "control_gap": Words(
            "control gap",
            f"frozen model: a case without a patient minus the {name}-blind reference",
        ),
        f"random {name}": Words(
            f"random {name}",
            f"the untrained model's replies, dealt at random among the patients of a set whose "
            f"{name} is named: nothing can depend on it there",
        ),
        "above_reference": Words(
            "above reference", f"mean invasiveness minus the {name}-blind reference's"
        ),
        **{
            f"{rate}_gap": Words(f"{rate.replace('_', ' ')} gap", f"percentage points by {name}")
            for rate in fields
        },
        **{
            rate: Words(rate.replace("_", " "), f"percent of replies with the most {field}")
            for rate, field in fields.items()
        },
        "by_hold_out": Words("By type of unseen case"),
        "by_cue": Words(f"{name.capitalize()} named or implied"),
        "by_severity": Words("By severity"),
        f"by_{design.attribute}_and_severity": Words(f"By {name} and severity"),
        design.relative_name: Words(
            f"relative to {first}", f"difference as a share of {first}'s mean"
        ),
        "disparity": Words("disparity", f"largest minus smallest {name} mean of the level"),
        f"by_{design.attribute}": Words(f"By {name}"),
        "by_field": Words("By decision field"),
    }


PRESENTATION = presentation_of(SPINE)
