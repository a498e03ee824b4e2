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
    old_version_days  = 0
    stale_upload_days = 0
    run_days          = 7
  }
  expect_failures = [var.cpu_nodes, var.gpu_nodes, var.old_version_days, var.stale_upload_days, var.run_days]
}
