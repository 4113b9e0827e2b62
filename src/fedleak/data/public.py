"""The `[data.public]` table: what server and clients share in the logit protocols."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from fedleak.components import component
from fedleak.data.emnist import Subset
from fedleak.data.rules import Broken, broken_source, known_dataset, raise_broken

__all__ = ["Domain", "PublicSpec", "Variant"]

Domain = Literal["mask", "blur", "own"]
Variant = Literal["paper", "released"]

BOX = 10
"""The side of the box blur where the specification does not say: 10x10 in pli.txt."""
OF_PEOPLE = ("targets", "domain", "blur", "variant", "drop_twins")
OF_ANOTHER = ("examples", "alpha", "classes", "path", "subset", "by_writers")
"""Keys that mean something in one of the two styles only."""


@component
class PublicSpec:
    """Where the public set comes from, in one of two styles.

    Without `name` it comes from the private data set itself, whose labels are people (pli.txt). `targets` of them are
    drawn: their clean images are private. Public are D_0, the clean images of everybody else, and D_a, images of
    another domain of everybody, targets included:

    - mask: every image with a mask drawn over the lower face. The masked twins of private images are among them, unless
      `drop_twins`: then `public_share` of the images of each target are public and masked, and only the others private.
    - blur: a box blur. `public_share` of the images of each target are public and blurred, the others private. The
      images of everybody else are clean (variant paper), or `public_share` of them are blurred (variant released).
    - own: the other domain that the data set comes with (lag: young faces).

    A person needs two images to be a target where images are shared out, and one of either domain in lag.

    With `name` it comes from another data set, made alike in size and channels; a share `alpha` of it is drawn from the
    private data set instead, disjoint from what clients hold and from the test set (adamsa.txt, section 3.3). With
    `by_writers` the other data set is the private one: a share of its writers is public, the rest private.
    """

    paper: ClassVar[str] = ""
    revision: ClassVar[int] = 1

    name: Annotated[str | None, Field(description="another data set; none: the private data set itself")] = None
    targets: Annotated[PositiveInt | None, Field(description="how many labels are private")] = None
    domain: Annotated[Domain | None, Field(description="of D_a; none: mask")] = None
    blur: Annotated[PositiveInt | None, Field(description="side of the box in pixels, for blur; none: 10")] = None
    variant: Annotated[Variant | None, Field(description="who is blurred, for blur; none: paper")] = None
    drop_twins: Annotated[bool, Field(description="no masked copy of a private or test image is public")] = False
    public_share: Annotated[
        float | None,
        Field(
            gt=0, lt=1, description="of each target's images (mask with drop_twins, blur) or of the writers; none: 0.5"
        ),
    ] = None
    labels: Annotated[
        bool | None, Field(description="public images are labelled; none: yes without `name`, no with it")
    ] = None
    examples: Annotated[PositiveInt | None, Field(description="at most this many public images; none: all")] = None
    alpha: Annotated[float | None, Field(ge=0, le=1, description="share drawn from the private data set; none: 0")] = (
        None
    )
    by_writers: Annotated[bool, Field(description="public and private images are of different writers")] = False
    classes: Annotated[
        tuple[NonNegativeInt, ...] | None, Field(description="only these labels of the other data set")
    ] = None
    path: Annotated[str | None, Field(description="file or folder in the data folder, for npz and imagefolder")] = None
    subset: Annotated[Subset | None, Field(description="for emnist; none: letters")] = None

    @field_validator("name")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        return None if name is None else known_dataset(name)

    @property
    def of_people(self) -> bool:
        """The public set comes from the private data set, whose labels are people."""
        return self.name is None

    @property
    def shares_out(self) -> bool:
        """The images of a target are shared out between the public and the private set."""
        return self.domain == "blur" or (self.drop_twins and self.domain in (None, "mask"))

    @property
    def labelled(self) -> bool:
        return self.of_people if self.labels is None else self.labels

    @property
    def box(self) -> int:
        return BOX if self.blur is None else self.blur

    @property
    def share(self) -> float:
        return 0.5 if self.public_share is None else self.public_share

    @model_validator(mode="after")
    def _rules(self) -> Self:
        raise_broken("PublicSpec", self, self._broken())
        return self

    def _broken(self) -> Broken:
        if self.name is None:
            for key in OF_ANOTHER:
                if getattr(self, key) not in (None, False):
                    yield key, "belongs to a public set from another data set; give its `name`, or remove this"
            yield from self._broken_people()
        else:
            for key in OF_PEOPLE:
                if getattr(self, key) not in (None, False):
                    yield (
                        key,
                        f"belongs to a public set from the private data set; remove this, or name = {self.name!r}",
                    )
            if self.by_writers and self.alpha is not None:
                yield "alpha", "with by_writers the two sets differ by their writers only; remove one of them"
            yield from broken_source(self.name, self)
        if self.public_share is not None and not (self.by_writers or (self.of_people and self.shares_out)):
            yield "public_share", "belongs to drop_twins, to domain = 'blur' or to by_writers; remove it"

    def _broken_people(self) -> Broken:
        if self.targets is None:
            yield "targets", "is required: how many labels are private (or give the `name` of another data set)"
        for key in ("blur", "variant"):
            if getattr(self, key) is not None and self.domain != "blur":
                yield key, f"belongs to domain = 'blur', but domain = {self.domain or 'mask'!r}; remove one of them"
