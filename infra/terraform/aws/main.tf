# A bucket, an EKS cluster, node groups that scale from zero, and the KubeRay operator.

module "plan" {
  source            = "../modules/plan"
  name              = var.name
  bucket            = var.bucket
  partition         = data.aws_partition.current.partition
  cpu_nodes         = var.cpu_nodes
  gpu_nodes         = var.gpu_nodes
  gpu_instance_type = var.gpu_instance_type
  efa_cards         = var.efa_cards
  local_nvme        = var.local_nvme
  spot              = var.spot
  old_version_days  = var.old_version_days
  stale_upload_days = var.stale_upload_days
  run_days          = var.run_days
}

data "aws_partition" "current" {}

data "aws_availability_zones" "here" {
  state = "available"
}

locals {
  zones      = slice(data.aws_availability_zones.here.names, 0, 3)
  policy_arn = "arn:${data.aws_partition.current.partition}:iam::aws:policy"
}
