from tests.unit.ledger.recorded import RecordedSimulation
from ekiden.engine.replay import replay

def test_replay():
    for seed in range(300):
        sim = RecordedSimulation(seed)
        sim.run()
        result = replay(sim.header, sim.kept.turns)
        assert result.difference is None, (seed, sim.world, result.difference)
        assert result.turns == len(sim.kept.turns)
