variable "name" {
  description = "Name of everything that is made; also the Kubernetes namespace's prefix in tags."
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
  description = "Most CPU worker nodes at once."
  type        = number
  default     = 8
  validation {
    condition     = var.cpu_nodes >= 0 && var.cpu_nodes <= 500
    error_message = "cpu_nodes: 0 to 500."
  }
}

variable "gpu_nodes" {
  description = "Most GPU worker nodes at once."
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

variable "spot" {
  description = "Whether there are spot twins of the worker groups as well."
  type        = bool
  default     = true
}

variable "old_version_days" {
  description = "Days that overwritten and deleted objects can still be brought back."
  type        = number
  default     = 7
  validation {
    condition     = var.old_version_days >= 1
    error_message = "old_version_days: at least 1."
  }
}

variable "stale_upload_days" {
  description = "Days after which the parts of an upload that never ended are deleted."
  type        = number
  default     = 2
  validation {
    condition     = var.stale_upload_days >= 1
    error_message = "stale_upload_days: at least 1."
  }
}

variable "run_days" {
  description = "Days after which what is left of a run moves to cheaper storage."
  type        = number
  default     = 30
  validation {
    condition     = var.run_days >= 30
    error_message = "run_days: at least 30, the shortest that infrequent access allows."
  }
}
