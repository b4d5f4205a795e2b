#!/usr/bin/env bash
# torch-geometric 2.8.1: in a batch of graphs, a graph's attribute is changed by what its name contains. With `batch` in it, the floats
# of each graph are raised by those before: rewards of 0.7 are 0.7, 1.7 and 2.7. With `index` in it, a label is raised by the number
# of nodes before. An attribute that the first graph lacks is left out. None of it with a message, and to_data_list gives the true
# values again. Names without these words are kept.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q torch==2.13.0 torch-geometric==2.8.1
"$folder/env/bin/python" - 2> "$folder/messages" <<'PY' || { cat "$folder/messages"; exit 1; }
import sys

import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader


def graph(**attributes):
    edges = torch.tensor([[0, 1], [1, 2]])
    return Data(x=torch.zeros(3, 2), edge_index=edges, reward=torch.tensor([0.7]), **attributes)


graphs = [graph(minibatch_reward=torch.tensor([0.7]), class_index=torch.tensor([2])) for _ in range(3)]
(batch,) = DataLoader(graphs, batch_size=3)
(uneven,) = DataLoader([graph(), graph(weight=torch.tensor([0.5]))], batch_size=2)
found = {
    "reward": batch.reward.tolist(),
    "minibatch_reward": batch.minibatch_reward.tolist(),
    "class_index": batch.class_index.tolist(),
    "minibatch_reward of the last graph": batch.to_data_list()[2].minibatch_reward.tolist(),
    "weight is there": "weight" in uneven,
}
for name, value in found.items():
    print(f"{name}: {[round(one, 4) for one in value] if isinstance(value, list) else value}")
as_expected = (
    torch.allclose(batch.reward, torch.tensor([0.7, 0.7, 0.7]))
    and torch.allclose(batch.minibatch_reward, torch.tensor([0.7, 1.7, 2.7]))
    and found["class_index"] == [2, 5, 8]
    and torch.allclose(torch.tensor(found["minibatch_reward of the last graph"]), torch.tensor([0.7]))
    and not found["weight is there"]
)
sys.exit(0 if as_expected else 1)
PY
