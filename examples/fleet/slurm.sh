#!/usr/bin/env bash
# A Ray cluster over the nodes of a Slurm job, and a fleet of servers on it:
#   sbatch --nodes 4 --ntasks-per-node 1 --cpus-per-task 32 --gpus-per-node 8 slurm.sh FLEET.yaml CONFIG.yaml
# The first node is the head and trains; agentgym-sdk[serve,train,vllm,ray] is installed on all nodes.
set -euo pipefail
fleet=$1
config=$2
shift 2

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head_address=$(srun --nodes 1 --ntasks 1 --nodelist "${nodes[0]}" hostname --ip-address | cut -d' ' -f1)
export RAY_ADDRESS="$head_address:6379"
# Others of the cluster could run code as you otherwise. The nodes share the home folder.
export RAY_AUTH_MODE=token
(umask 077 && ray get-auth-token --generate >/dev/null)

srun --overlap --nodes 1 --ntasks 1 --nodelist "${nodes[0]}" \
  ray start --head --block --node-ip-address "$head_address" --port 6379 --include-dashboard=false &
until ray status >/dev/null 2>&1; do sleep 1; done
for node in "${nodes[@]:1}"; do
  srun --overlap --nodes 1 --ntasks 1 --nodelist "$node" ray start --block --address "$RAY_ADDRESS" &
done

agentgym up "$fleet"
agentgym train "$config" "$@"
agentgym down "$(sed -n 's/^name: *//p' "$fleet")"
