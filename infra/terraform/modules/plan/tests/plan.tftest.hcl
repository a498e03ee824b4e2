variables {
  name   = "bertmill"
  bucket = "bertmill-test"
}

run "defaults" {
  command = plan
  assert {
    condition     = toset(keys(output.node_groups)) == toset(["head", "cpu", "gpu", "cpu-spot", "gpu-spot"])
    error_message = "every pool and its spot twin"
  }
  assert {
    condition     = output.node_groups["head"].capacity == "ON_DEMAND" && output.node_groups["head"].min == 1
    error_message = "the head is never on spot"
  }
  assert {
    condition     = alltrue([for name, group in output.node_groups : group.min == 0 if name != "head"])
    error_message = "workers start from zero"
  }
  assert {
    condition     = output.node_groups["gpu-spot"].taints == tomap({ "nvidia.com/gpu" = "present", "bertmill/spot" = "present" })
    error_message = "a spot GPU node keeps both kinds of other pods away"
  }
  assert {
    condition     = !strcontains(output.job_policy, "s3:DeleteObjectVersion") && !strcontains(output.job_policy, "s3:Put*")
    error_message = "least rights"
  }
  assert {
    condition = alltrue([
      for statement in jsondecode(output.job_policy).Statement : alltrue([
        for arn in flatten([statement.Resource]) : startswith(arn, "arn:aws:s3:::bertmill-test")
      ])
    ])
    error_message = "no bucket but ours"
  }
  assert {
    condition = alltrue([
      for statement in jsondecode(output.launcher_policy).Statement :
      can(statement.Condition) || alltrue([for action in statement.Action : action != "ec2:TerminateInstances" && action != "ec2:CreateTags"])
    ])
    error_message = "the launcher ends and marks its own workers only"
  }
  assert {
    condition     = alltrue([for rule in output.lifecycle : rule.prefix != "" || rule.move_days == 0])
    error_message = "a corpus in use stays where it is"
  }
  assert {
    condition     = output.lifecycle["stale-uploads"].abort_days == 2 && output.lifecycle["old-versions"].old_version_days == 7
    error_message = "uploads that never ended and old versions go away"
  }
}

run "network_and_local_disks" {
  command = plan
  assert {
    condition     = alltrue([for name, group in output.node_groups : (group.efa_cards == 4) == startswith(name, "gpu")])
    error_message = "GPU nodes have EFA and no others"
  }
  assert {
    condition = alltrue([
      for name, group in output.node_groups :
      lookup(group.tags, "k8s.io/cluster-autoscaler/node-template/resources/vpc.amazonaws.com/efa", "0") == tostring(group.efa_cards)
    ])
    error_message = "the autoscaler knows the network cards of a group without nodes"
  }
  assert {
    condition     = alltrue([for name, group in output.node_groups : group.local_nvme == startswith(name, "gpu")])
    error_message = "only GPU nodes have local disks by default"
  }
  assert {
    condition     = yamldecode(split("\n\n", output.local_nvme_user_data)[2]).spec.instance.localStorage.strategy == "RAID0"
    error_message = "the kubelet's folder is on the local disks"
  }
}

run "local_disks_of_cpu_nodes" {
  command = plan
  variables {
    local_nvme = true
    efa_cards  = 0
  }
  assert {
    condition     = alltrue([for kind in output.node_groups["cpu"].instance_types : can(regex("^m[0-9]+[a-z]*d[a-z]*\\.", kind))])
    error_message = "instance types with local disks have a d after the generation"
  }
  assert {
    condition     = length(output.node_groups["gpu"].tags) == 1
    error_message = "without EFA no tag of it"
  }
}

run "without_gpus_and_spot" {
  command = plan
  variables {
    gpu_nodes = 0
    spot      = false
  }
  assert {
    condition     = toset(keys(output.node_groups)) == toset(["head", "cpu"])
    error_message = "a group without nodes is not made"
  }
}

run "other_partition" {
  command = plan
  variables {
    partition = "aws-cn"
  }
  assert {
    condition     = strcontains(output.bucket_policy, "arn:aws-cn:s3:::bertmill-test/*")
    error_message = "the partition is part of every name"
  }
}

run "bad_names" {
  command = plan
  variables {
    name   = "Bert Mill"
    bucket = "X"
  }
  expect_failures = [var.name, var.bucket]
}

run "bad_numbers" {
  command = plan
  variables {
    cpu_nodes         = -1
    gpu_nodes         = 100
    efa_cards         = 33
    old_version_days  = 0
    stale_upload_days = 0
    run_days          = 7
  }
  expect_failures = [var.cpu_nodes, var.gpu_nodes, var.efa_cards, var.old_version_days, var.stale_upload_days, var.run_days]
}
