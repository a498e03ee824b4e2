# The decisions: node groups, permissions, lifecycle rules. This module needs no provider, so Terraform can
# validate, plan and test it anywhere.

terraform {
  required_version = ">= 1.9"
}

locals {
  bucket_arn = "arn:${var.partition}:s3:::${var.bucket}"

  # Shared by both kinds of capacity. cluster/kuberay selects nodes by these labels.
  workers = {
    cpu = {
      instance_types = var.local_nvme ? ["m6id.4xlarge", "m6idn.4xlarge", "m5d.4xlarge", "m5ad.4xlarge"] : ["m7i.4xlarge", "m7a.4xlarge", "m6i.4xlarge", "m6a.4xlarge"]
      ami_type       = "AL2023_x86_64_STANDARD"
      max            = var.cpu_nodes
      disk_gib       = 250
      local_nvme     = var.local_nvme
      efa_cards      = 0
      taints         = {}
    }
    gpu = {
      instance_types = [var.gpu_instance_type]
      ami_type       = "AL2023_x86_64_NVIDIA"
      max            = var.gpu_nodes
      disk_gib       = 600
      local_nvme     = true # all GPU machines of the size that cluster/kuberay asks for have some
      efa_cards      = var.efa_cards
      taints         = { "nvidia.com/gpu" = "present" }
    }
  }

  on_demand = {
    for pool, group in local.workers : pool => merge(group, {
      capacity = "ON_DEMAND"
      min      = 0
      labels   = { "bertmill/pool" = pool }
    })
  }

  spot = var.spot ? {
    for pool, group in local.workers : "${pool}-spot" => merge(group, {
      capacity = "SPOT"
      min      = 0
      labels   = { "bertmill/pool" = pool, "bertmill/capacity" = "spot" }
      taints   = merge(group.taints, { "bertmill/spot" = "present" })
    })
  } : {}

  # Heads, operators and others that must not be preempted run on demand.
  head = {
    head = {
      instance_types = ["m7i.2xlarge", "m7a.2xlarge"]
      ami_type       = "AL2023_x86_64_STANDARD"
      capacity       = "ON_DEMAND"
      min            = 1
      max            = 4
      disk_gib       = 100
      local_nvme     = false
      efa_cards      = 0
      labels         = { "bertmill/pool" = "head" }
      taints         = {}
    }
  }
}

output "node_groups" {
  description = "Node groups by name."
  value = {
    for name, group in merge(local.head, local.on_demand, local.spot) : name => merge(group, {
      # The autoscaler starts the first node of a group only for a pod that fits. It reads CPUs, memory and GPUs
      # from the instance type, and the disk from this tag: the nine tenths that the kubelet offers to pods. Local
      # disks are larger. The other tag gives the number of network cards.
      tags = merge(
        { "k8s.io/cluster-autoscaler/node-template/resources/ephemeral-storage" = "${floor(group.disk_gib * 0.9) - 2}Gi" },
        group.efa_cards > 0 ? { "k8s.io/cluster-autoscaler/node-template/resources/vpc.amazonaws.com/efa" = tostring(group.efa_cards) } : {},
      )
    }) if group.max > 0
  }
}

# Read by nodeadm of Amazon Linux 2023. Pods' emptyDir volumes, to which Ray spills, are then on the local disks.
output "local_nvme_user_data" {
  description = "User data that joins a node's local disks to one file system for the kubelet and containers."
  value       = <<-EOT
    MIME-Version: 1.0
    Content-Type: multipart/mixed; boundary="//"

    --//
    Content-Type: application/node.eks.aws

    apiVersion: node.eks.aws/v1alpha1
    kind: NodeConfig
    spec:
      instance:
        localStorage:
          strategy: RAID0

    --//--
  EOT
}

output "tags" {
  description = "Tags of all resources."
  value       = { "bertmill" = var.name, "managed-by" = "terraform" }
}

# Allows reading everything, writing below the three prefixes, and aborting uploads. Does not allow deleting
# versions, changing the bucket, or access to another one.
output "job_policy" {
  description = "Permissions of the pods of both jobs, as a policy document."
  value = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "List"
        Effect   = "Allow"
        Action   = ["s3:ListBucket", "s3:ListBucketMultipartUploads", "s3:GetBucketLocation"]
        Resource = local.bucket_arn
      },
      {
        Sid      = "Read"
        Effect   = "Allow"
        Action   = ["s3:GetObject"]
        Resource = "${local.bucket_arn}/*"
      },
      {
        Sid      = "Write"
        Effect   = "Allow"
        Action   = ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
        Resource = [for prefix in ["corpora", "runs"] : "${local.bucket_arn}/${prefix}/*"]
      },
    ]
  })
}

# The calls of Ray's launcher on the head of cluster/aws.yaml, in addition to the job policy, limited to workers
# of this cluster.
output "launcher_policy" {
  description = "Permissions of the head of a cluster without Kubernetes, as a policy document."
  value = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "Look"
        Effect   = "Allow"
        Action   = ["ec2:DescribeInstances", "ec2:DescribeInstanceTypes", "ec2:DescribeImages"]
        Resource = "*"
      },
      {
        Sid      = "Image"
        Effect   = "Allow"
        Action   = ["ssm:GetParameters"]
        Resource = "arn:${var.partition}:ssm:*::parameter/aws/service/*"
      },
      {
        Sid       = "Start"
        Effect    = "Allow"
        Action    = ["ec2:RunInstances"]
        Resource  = "arn:${var.partition}:ec2:*:*:instance/*"
        Condition = { StringEquals = { "aws:RequestTag/ray-cluster-name" = var.name } }
      },
      {
        Sid    = "StartWith"
        Effect = "Allow"
        Action = ["ec2:RunInstances"]
        Resource = concat(["arn:${var.partition}:ec2:*::image/*"], [
          for kind in ["key-pair", "network-interface", "security-group", "spot-instances-request", "subnet", "volume"] :
          "arn:${var.partition}:ec2:*:*:${kind}/*"
        ])
      },
      {
        Sid       = "Tag"
        Effect    = "Allow"
        Action    = ["ec2:CreateTags"]
        Resource  = "arn:${var.partition}:ec2:*:*:instance/*"
        Condition = { StringEquals = { "ec2:CreateAction" = "RunInstances" } }
      },
      {
        Sid       = "OurWorkers"
        Effect    = "Allow"
        Action    = ["ec2:CreateTags", "ec2:TerminateInstances"]
        Resource  = "arn:${var.partition}:ec2:*:*:instance/*"
        Condition = { StringEquals = { "aws:ResourceTag/ray-cluster-name" = var.name } }
      },
      {
        Sid      = "WorkersRole"
        Effect   = "Allow"
        Action   = ["iam:PassRole"]
        Resource = "arn:${var.partition}:iam::*:role/${var.name}-worker"
      },
    ]
  })
}

output "bucket_policy" {
  description = "Denies plain HTTP to everyone."
  value = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "TlsOnly"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [local.bucket_arn, "${local.bucket_arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })
}

output "lifecycle" {
  description = "Lifecycle rules of the bucket. 0 days means never."
  value = {
    stale-uploads = { prefix = "", abort_days = var.stale_upload_days, old_version_days = 0, move_days = 0, delete_markers = false }
    old-versions  = { prefix = "", abort_days = 0, old_version_days = var.old_version_days, move_days = 0, delete_markers = false }
    # Delete markers without versions would slow down listings forever.
    delete-markers = { prefix = "", abort_days = 0, old_version_days = 0, move_days = 0, delete_markers = true }
    # A run deletes its checkpoints once newer ones are verified. Those left after a month are an archive.
    runs = { prefix = "runs/", abort_days = 0, old_version_days = 1, move_days = var.run_days, delete_markers = false }
  }
}
