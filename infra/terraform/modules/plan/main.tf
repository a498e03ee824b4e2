# Everything that is decided rather than made: node groups, rights, lifecycle. No provider is needed, so
# Terraform validates, plans and tests this module anywhere.

terraform {
  required_version = ">= 1.9"
}

locals {
  bucket_arn = "arn:${var.partition}:s3:::${var.bucket}"

  # What both kinds of capacity share. The labels are those that cluster/kuberay asks for.
  workers = {
    cpu = {
      instance_types = ["m7i.4xlarge", "m7a.4xlarge", "m6i.4xlarge", "m6a.4xlarge"]
      ami_type       = "AL2023_x86_64_STANDARD"
      max            = var.cpu_nodes
      disk_gib       = 250
      taints         = {}
    }
    gpu = {
      instance_types = [var.gpu_instance_type]
      ami_type       = "AL2023_x86_64_NVIDIA"
      max            = var.gpu_nodes
      disk_gib       = 600
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

  # Heads, operators and what else must not be taken away: always on demand.
  head = {
    head = {
      instance_types = ["m7i.2xlarge", "m7a.2xlarge"]
      ami_type       = "AL2023_x86_64_STANDARD"
      capacity       = "ON_DEMAND"
      min            = 1
      max            = 4
      disk_gib       = 100
      labels         = { "bertmill/pool" = "head" }
      taints         = {}
    }
  }
}

output "node_groups" {
  description = "Node groups by name."
  value       = { for name, group in merge(local.head, local.on_demand, local.spot) : name => group if group.max > 0 }
}

output "tags" {
  description = "Tags of everything."
  value       = { "bertmill" = var.name, "managed-by" = "terraform" }
}

# Reads everything, writes below the three prefixes, and can end uploads; no right to delete versions,
# to change the bucket, or to reach another one.
output "job_policy" {
  description = "What the pods of both jobs may do, as a policy document."
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

output "bucket_policy" {
  description = "What nobody may do: plain HTTP."
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
  description = "Rules of the bucket: 0 days means never."
  value = {
    stale-uploads = { prefix = "", abort_days = var.stale_upload_days, old_version_days = 0, expire_days = 0, move_days = 0 }
    old-versions  = { prefix = "", abort_days = 0, old_version_days = var.old_version_days, expire_days = 0, move_days = 0 }
    # A run deletes its own checkpoints when newer ones are verified; what is left after a month is an archive.
    runs = { prefix = "runs/", abort_days = 0, old_version_days = 1, expire_days = 0, move_days = var.run_days }
  }
}
