variable "name" {
  description = "Name in the tags and role names of all resources."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}$", var.name))
    error_message = "name: 2 to 31 lower-case letters, digits and hyphens, starting with a letter."
  }
}

variable "bucket" {
  description = "Name of the bucket for dumps, corpora and runs."
  type        = string
  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "bucket: 3 to 63 lower-case letters, digits, dots and hyphens."
  }
}

variable "partition" {
  description = "AWS partition: aws, aws-cn or aws-us-gov."
  type        = string
  default     = "aws"
}

variable "cpu_nodes" {
  description = "Maximum number of CPU worker nodes."
  type        = number
  default     = 8
  validation {
    condition     = var.cpu_nodes >= 0 && var.cpu_nodes <= 500
    error_message = "cpu_nodes: 0 to 500."
  }
}

variable "gpu_nodes" {
  description = "Maximum number of GPU worker nodes."
  type        = number
  default     = 1
  validation {
    condition     = var.gpu_nodes >= 0 && var.gpu_nodes <= 64
    error_message = "gpu_nodes: 0 to 64."
  }
}

variable "gpu_instance_type" {
  description = "Instance type of the GPU workers."
  type        = string
  default     = "p4d.24xlarge"
}

variable "efa_cards" {
  description = "EFA network cards of a GPU worker: 4 of p4d.24xlarge, 32 of p5.48xlarge, 0 for plain TCP."
  type        = number
  default     = 4
  validation {
    condition     = var.efa_cards >= 0 && var.efa_cards <= 32
    error_message = "efa_cards: 0 to 32."
  }
}

variable "local_nvme" {
  description = "Whether CPU workers have local disks for what Ray spills. GPU workers always use theirs."
  type        = bool
  default     = false
}

variable "spot" {
  description = "Whether to create spot versions of the worker groups, too."
  type        = bool
  default     = true
}

variable "old_version_days" {
  description = "Days for which overwritten and deleted objects can be restored."
  type        = number
  default     = 7
  validation {
    condition     = var.old_version_days >= 1
    error_message = "old_version_days: at least 1."
  }
}

variable "stale_upload_days" {
  description = "Days after which the parts of an unfinished upload are deleted."
  type        = number
  default     = 2
  validation {
    condition     = var.stale_upload_days >= 1
    error_message = "stale_upload_days: at least 1."
  }
}

variable "run_days" {
  description = "Days after which the remaining files of a run move to cheaper storage."
  type        = number
  default     = 30
  validation {
    condition     = var.run_days >= 30
    error_message = "run_days: at least 30, the shortest that infrequent access allows."
  }
}
