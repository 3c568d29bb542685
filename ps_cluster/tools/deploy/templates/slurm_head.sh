#!/bin/bash
{# The head of the script for Slurm, which is different for every training. `job` is a SlurmJob (slurm.py). `sh` quotes a
   text for the shell. #}
#SBATCH --job-name={{ job.name }}
#SBATCH --ntasks={{ job.count }}
{% if job.tasks_per_node %}
#SBATCH --nodes={{ (job.count / job.tasks_per_node) | round(0, "ceil") | int }}
#SBATCH --ntasks-per-node={{ [job.count, job.tasks_per_node] | min }}
{% else %}
#SBATCH --nodes=1-{{ job.count }}
#SBATCH --use-min-nodes
{% endif %}
#SBATCH --cpus-per-task={{ job.cpus }}
{# Memory is requested by CPU, because a step would take all memory that is requested by node. #}
#SBATCH --mem-per-cpu={{ job.memory_per_cpu }}
{% if job.time %}
#SBATCH --time={{ job.time }}
{% endif %}
{# The signal goes to this script only (B), so that the leader stops first. #}
#SBATCH --signal=B:TERM@{{ (job.roles | selectattr("leads") | first).grace_s }}
#SBATCH --open-mode=append
#SBATCH --requeue
{% for option in job.more %}
#SBATCH {{ option }}
{% endfor %}

set -euo pipefail
roles=({% for role in job.roles %}{{ role.type }}:{{ role.count }}{{ " " if not loop.last }}{% endfor %})
run_dir={{ job.run_dir | string | sh }}
config=$run_dir.yaml logs=$run_dir.slurm
command=({{ job.program | sh }} task --run-dir "$run_dir" --config "$config"{% for word in job.task_options %} {{ word | sh }}{% endfor %})
first_port={{ job.first_port_in_shell }} restarts={{ job.restarts }} steady_s={{ job.steady_s }}
never_retry=({{ never_retry | join(" ") }})
mkdir -p -- "$logs"
{# The file is written under another name and renamed. So a full disk never leaves half a configuration to the tasks. #}
{ cat > "$config.part" && mv -- "$config.part" "$config"; } <<'CONFIG' || { rm -f -- "$config.part"; exit 1; }
{{ job.config.to_yaml() | trim }}
CONFIG

