import numpy as np

from optvet.engine.judge.known_noise import Noise
from optvet.engine.judge.outputs import judge


def test_a_slice_of_zeros_may_hold_what_is_nothing_beside_the_rest() -> None:
    """Where one Sigmoid gives 0, another gives 1e-12."""
    reference = np.linspace(0.1, 1, 1024, dtype=np.float32).reshape(32, 32)
    reference[5] = 0
    candidate = reference.copy()
    candidate[5] = 1e-12
    candidate[0] *= np.float32(1 + 2e-6)  # else all of it is called rounding at once
    noise = Noise(jitters=({"y": reference * np.float32(1 + 1e-6)},))
    (judgement,) = judge({"y": reference}, {"y": candidate}, noise)
    assert judgement.call == "drift"
    candidate[5] = 1e-5
    (judgement,) = judge({"y": reference}, {"y": candidate}, noise)
    assert judgement.call == "fault"
