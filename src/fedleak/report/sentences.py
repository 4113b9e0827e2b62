"""The sentences of the verdict, for every kind of finding: what was got, from what, by whom, knowing what."""

from __future__ import annotations

from collections.abc import Sequence

from fedleak.report.arms import Arm
from fedleak.report.beside import Pictured
from fedleak.report.kinds import guess_words
from fedleak.report.levels import Level, above_a_guess
from fedleak.report.summaries import Summary
from fedleak.report.tables import is_defended, swept
from fedleak.report.words import (
    between_points,
    cases,
    defense_name,
    knowledge,
    percent,
    plural,
    points,
    prose,
    sent_by,
    setting,
)

__all__ = [
    "amount",
    "amount_of",
    "badge",
    "gained",
    "leaked",
    "left_to_see",
    "said_of_deployed",
    "still_leaks",
    "stopped",
]

PAST = {"recover": "recovered", "make": "made", "tell": "told"}
NO_PROOF = "That is no proof that nothing leaks: a stronger attack may still succeed."


def amount(found: Summary) -> str:
    """What an attack got, in the shortest words that are still true: for tables."""
    if found.success is None:
        return "not judged"
    if found.kind == "model":
        return percent(found.success.mean)
    return cases(found.hits, found.images)


def amount_of(found: Summary) -> str:
    """What it is an amount of."""
    if found.kind == "model":
        victim = found.scores.get("victim_accuracy")
        return "accurate copy" if victim is None else f"accurate copy, victim {percent(victim.mean)}"
    return found.things


def leaked(worst: Summary, arms: Sequence[Arm]) -> str:
    """The first sentence about a kind of finding: the worst case."""
    where = worst.where
    own = next(arm for arm in arms if worst in arm.attacks)
    extra = setting(where, swept(found for arm in arms for found in arm.attacks))
    senders, known = _clients_of(worst, own), knowledge(worst.granted, where.get("protocol"))

    def source(who: str, aside: str = f" ({extra})" if extra else "") -> str:
        return f"from the {sent_by(where.get('protocol'))} that {who} sent in {where.get('protocol')}{aside}"

    told = f"{source(senders)}, {known}"
    defense, attack = f"With {defense_name(where)}", where.get("attack")
    if worst.kind == "images" and not worst.hits:
        return _no_image(worst, arms, defense, source(senders, ""))
    if worst.kind != "images" and not above_a_guess(worst):
        return f"{defense}, {_no_more_than_a_guess(worst, source(senders))} {NO_PROOF}"
    match worst.kind:
        case "images":
            return f"{defense}, {attack} recovered {cases(worst.hits, worst.images)} {worst.things} {told}."
        case "classes":
            return f"{defense}, {attack} recovered pictures of {cases(worst.hits, worst.images)} {worst.things} {told}."
        case "model":
            one = worst.clients == 1
            whose = f"the model{'' if one else 's'} of {senders}"
            result = "the copy is" if one else "on average the copies are"
            told = f"{source('it' if one else 'they')}, {known}"
            return f"{defense}, {attack} copied {whose} {told}: {result} {copy_words(worst)}.{_chance(worst)}"
        case "counts":
            wrong = f"{cases(worst.images - worst.hits, worst.images)} labels wrong"
            return f"{defense}, {attack} told which labels the clients hold, with {wrong}{_guessed(worst)} {told}."


def gained(found: Pictured) -> str:
    """What the attack added to its prior, and whose messages it took the pictures from."""
    sentences = []
    if found.prior and "attack_accuracy" in found.gain:
        prior, gain = found.prior["attack_accuracy"], found.gain["attack_accuracy"]
        reach = cases(round(prior * gain.n), gain.n)
        likeness = ""
        if "ssim" in found.prior and "ssim" in found.found.scores:
            likeness = f"; SSIM {found.found.scores['ssim'].mean:.2f} against {found.prior['ssim']:.2f}"
        spread = "" if gain.degenerate else f" ({between_points(gain)}, 95 %)"
        sentences.append(
            f"Its prior alone, which saw nothing of what was sent, reaches {reach}: "
            f"the attack adds {points(gain.mean)}{spread}{likeness}."
        )
    if found.owner is not None:
        holder = "the person" if found.found.things == "people" else "the class"
        sentences.append(
            f"It took the picture from a client that holds {holder} in {percent(found.owner)} of the cases."
        )
    return " ".join(sentences)


def stopped(found: Summary) -> str:
    """What is left of an attack that a defense stops, for the brackets behind the word."""
    above = f" above {found.thresholds[0]:g} dB" if len(found.thresholds) == 1 else ""
    match found.kind:
        case "images":
            return f"{cases(found.hits, found.images)}{above}"
        case "classes":
            beside = f", {_against_a_guess(found)}" if found.hits else ""
            return f"{cases(found.hits, found.images)} {found.things}{beside}"
        case "model":
            copies = "the copy is" if found.clients == 1 else "the copies are"
            return f"{copies} {amount(found)} accurate, {_against_a_guess(found)}"
        case "counts":
            return f"{cases(found.images - found.hits, found.images)} labels wrong, no fewer than a guess"


def left_to_see(found: Summary | None) -> str:
    """Of images below the threshold that are still surely more like the originals than a guess: a further sentence."""
    if found is None:
        return ""
    ssim, guess = found.scores["ssim"].mean, found.nulls["ssim"].mean
    return (
        f" What {found.where.get('attack')} still gets is more like the originals than a guess (SSIM {ssim:.2f} "
        f"against {guess:.2f}): look at the pictures before you call that safe."
    )


def still_leaks(found: Summary) -> tuple[str, str]:
    """What an attack still gets: the verb, and what."""
    match found.kind:
        case "images":
            return "recover", cases(found.hits, found.images)
        case "classes":
            return "recover", f"pictures of {cases(found.hits, found.images)} {found.things}"
        case "model":
            one = "a copy that is" if found.clients == 1 else "copies that are on average"
            return "make", f"{one} {copy_words(found)}"
        case "counts":
            return "tell", f"the labels with {cases(found.images - found.hits, found.images)} wrong"


def said_of_deployed(found: Summary) -> str:
    """The same about the deployed arm, behind its name."""
    attack, total = found.where.get("attack"), found.images
    if found.kind == "images" and not found.hits:
        return (
            f"none of the {plural(total, found.things)} was recovered by the attacks that were run; that is no proof."
        )
    if found.kind != "images" and not above_a_guess(found):
        return f"{_no_more_than_a_guess(found)} That is no proof."
    if found.kind == "images":
        return f"{attack} recovered {cases(found.hits, total)} {found.things}."
    verb, what = still_leaks(found)
    return f"{attack} {PAST[verb]} {what}."


def badge(level: Level, found: Summary) -> str:
    """Three to five words for the head of the page."""
    name = found.things
    if level == "unrecovered":
        guess = {"images": "recovered no more than a guess", "classes": "recognised no more than a guess"}
        nothing = {"images": f"no {name} recovered by these attacks", "classes": f"no {name} recognised in pictures"}
        return (guess if found.hits else nothing).get(found.kind, "no more than a guess")
    match found.kind:
        case "images":
            return f"private {name} recovered" if level == "severe" else f"some private {name} recovered"
        case "classes":
            return f"pictures of {'' if level == 'severe' else 'some '}private {name} recovered"
        case "model":
            return "models copied" if level == "severe" else "models copied in part"
        case "counts":
            return "private labels counted"


def _clients_of(found: Summary, arm: Arm) -> str:
    """4 clients; where the finding is about all of them and their number is not recorded, the clients."""
    count = found.clients or arm.members
    return plural(count, "clients") if count else "the clients"


def copy_words(found: Summary) -> str:
    """63 % accurate where the victim is 65 %, agreeing with it on 80 % of the test images."""
    victim, agrees = found.scores.get("victim_accuracy"), found.scores.get("fidelity")
    whose = ("the victim is", "it") if found.clients == 1 else ("the victims are", "them")
    text = f"{amount(found)} accurate"
    text += f" where {whose[0]} {percent(victim.mean)}" if victim is not None else ""
    return text + (f", agreeing with {whose[1]} on {percent(agrees.mean)} of the test images" if agrees else "")


def _no_image(worst: Summary, arms: Sequence[Arm], defense: str, source: str) -> str:
    same = [found for arm in arms for found in arm.attacks if found.images and found.kind == worst.kind]
    names = list(dict.fromkeys(str(found.where.get("attack")) for found in same))
    tried = any(is_defended(found.where) and found.success is not None for found in same)
    defense = "With or without a defense" if tried and not is_defended(worst.where) else defense
    return (
        f"{defense}, none of the {plural(worst.images, worst.things)} was recovered {source} by "
        f"the {'attack that was' if len(names) == 1 else 'attacks that were'} run ({prose(names)}). {NO_PROOF}"
    )


def _no_more_than_a_guess(found: Summary, source: str = "") -> str:
    attack, total, source = found.where.get("attack"), found.images, f" {source}" if source else ""
    null = found.success_null
    guess = null.mean if null is not None else 0.0
    if found.kind == "model":
        noun, verb = ("copy", "is") if found.clients == 1 else ("copies", "are")
        beside = f"{_against_a_guess(found)} ({percent(guess)})"
        return f"the {noun} that {attack} made{source} {verb} {copy_words(found)}: {beside}."
    if found.kind == "counts":
        wrong = cases(round((1 - guess) * total), total)
        return f"{attack} got {cases(total - found.hits, total)} labels wrong{source}: a guess does as well ({wrong})."
    if not found.hits:
        return f"none of the {total} {found.things} can be recognised in the pictures that {attack} made{source}."
    reach = f"{cases(round(guess * total), total)}{': ' + guess_words(null.name) if null is not None else ''}"
    return (
        f"{attack} recovered pictures of {cases(found.hits, total)} {found.things}{source}: "
        f"{_against_a_guess(found)} ({reach})."
    )


def _against_a_guess(found: Summary) -> str:
    """Of what did not beat a guess: whether it is lower, or only not surely higher."""
    null = found.success_null
    higher = found.success is not None and found.success.mean > (null.mean if null is not None else 0.0)
    return "not clearly more than a guess" if higher else "no more than a guess"


def _chance(found: Summary) -> str:
    null = found.success_null
    return "" if null is None else f" Naming always the commonest class is right for {percent(null.mean)}."


def _guessed(found: Summary) -> str:
    null = found.success_null
    return "" if null is None else f" (a guess gets {round((1 - null.mean) * found.images)} wrong),"
