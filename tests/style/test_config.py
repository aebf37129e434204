import pytest

from retable.platform.config import override
from retable.platform.errors import UserError
from retable.tasks.style.config import Config, Texture, View

IMAGE = {"method": "optimise_image"}
BLEND = {"style": ["great_wave", "the_scream"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method.learning_rate": -1.0}, "learning_rate -1.0 is not above 0"),
        *(
            ({f"method.{name}": -1}, f"{name.split('.')[-1]} -1.* is below 0")
            for name in (
                *("style_size", "gradient_norm", "steady_weight", "saturation_weight", "lattice_weight"),
                *("tone_weight", "spike_weight", "objective.style_weight", "objective.content_weight"),
                *("objective.variation_weight", "new_styles"),
            )
        ),
        ({"method.texture": "texture", "method.texture.style_weight": -1.0}, "style_weight -1.0 is below 0"),
        ({**IMAGE, "method.style_scale": 0.0}, "style_scale 0.0 is not above 0"),
        ({**IMAGE, "method.style_scale": -2.0}, "style_scale -2.0 is not above 0"),
        ({**IMAGE, "method.optimizer.history": 0}, "history 0 is below 1"),
        *(
            ({**IMAGE, "method.optimizer": name, "method.optimizer.learning_rate": -1.0}, "learning_rate -1.0 is not")
            for name in ("lbfgs", "adam", "sgd")
        ),
        ({"seed": -1}, "seed -1 is below 0"),
        ({**BLEND, "blend": [1e308, 1e308]}, "blend .* should hold 2 weights"),
    ],
)
def test_values_that_no_training_can_use_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        override(Config(), changes)


def test_a_view_of_no_epoch_is_refused():
    with pytest.raises(UserError, match="epoch -1 is below 0"):
        override(View(), {"epoch": -1})


def test_zero_leaves_a_term_out():
    changes = {"method.objective.style_weight": 0.0, "method.texture": "texture", "method.texture.style_weight": 0.0}
    assert override(Config(), changes).method.texture == Texture(style_weight=0.0)
